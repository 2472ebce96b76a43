-- End an open job.
--
-- Keys: common.lua. ARGV: 3 ttl ms

pass_when_full()
if is_open(get('state')) then finish('cancelled', tonumber(ARGV[3])) end
return 1
