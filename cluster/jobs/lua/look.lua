-- Name jobs that may be claimed, longest waiting first, and jobs that are due.
--
-- Keys: common.lua; those of one job are not used. ARGV: 3 most ids of each
-- Reply: {ids to claim, ids that are due}

return {
  call('ZRANGEBYSCORE', OPEN, '-inf', NOW, 'LIMIT', 0, ARGV[3]),
  call('ZRANGEBYSCORE', DUE, '-inf', NOW, 'LIMIT', 0, ARGV[3]),
}
