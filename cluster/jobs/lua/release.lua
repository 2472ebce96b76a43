-- Give a job back.
--
-- Keys: common.lua. ARGV: 3 token

if get('token') == ARGV[3] then
  unhold()
  call('ZADD', OPEN, number('created'), ID)
end
return 1
