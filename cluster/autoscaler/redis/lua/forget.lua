-- Forget the leader of a pool that was removed, with all that it knew of the replicas. A late decision of it is refused.
--
-- Keys: common.lua. ARGV: none of its own
-- Reply: number of the fields that were there

return call('HDEL', CONTROL, 'holder', 'until', 'state', 'target', 'relief', 'relief_until', 'standby',
  'standby_until')
