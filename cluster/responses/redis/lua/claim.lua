-- Take a response that runs.
--
-- ARGV: 4 token, 5 lease ms, 6 1 to take it from a live owner too, 7 ttl ms
-- Reply: 1 taken; 0 not

pass_when_full()
if not is_running() then
  -- It has ended, or is lost. It must not stand in the way of others.
  call('ZREM', OPEN, MEMBER)
  return 0
end
local lease = tonumber(ARGV[5])
local ends = tonumber(call('ZSCORE', OPEN, MEMBER))
-- A lease that ends further in the future than any router sets is from before the clock was set back.
if ARGV[6] ~= '1' and ends and ends > NOW and ends - NOW <= 2 * lease then return 0 end
call('HSET', RESPONSE, 'token', ARGV[4], 'read', text(NOW))
call('ZADD', OPEN, text(NOW + lease), MEMBER)
call('ZADD', DUE, text(NOW + tonumber(ARGV[7])), MEMBER)
return 1
