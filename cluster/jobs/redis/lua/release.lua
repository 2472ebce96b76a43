-- Give a job back.
--
-- Keys: common.lua. ARGV: 3 token

pass_when_full()
if get('token') == ARGV[3] then
  unhold()
  call('ZADD', OPEN, number('created'), ID)
end
return 1
