-- Store an item's result; the last one ends the job.
--
-- Keys: common.lua. ARGV: 3 token, 4 item, 5 result, 6 1 for an error, 7 prompt tokens, 8 output tokens, 9 cached
-- tokens, 10 GPU seconds, 11 cost, 12 ttl ms, 13 bytes per tenant, 14 bytes, 15 bytes of
-- its line, 16 reasoning tokens
-- Reply: 1 stored; 0 the item has one; -1 not held; -2 a part of the job is lost, so it was ended; {what, limit} if a limit would be exceeded (an error is always
-- stored)

if get('token') ~= ARGV[3] then return -1 end
if end_if_torn(tonumber(ARGV[12])) then return -2 end
if call('GETBIT', DONE, ARGV[4]) == 1 then return 0 end
if ARGV[6] ~= '1' then
  local bytes = #ARGV[5]
  if counted('bytes', get('tenant')) + bytes > tonumber(ARGV[13]) then return {'tenant_bytes', ARGV[13]} end
  if counted('bytes', '') + bytes > tonumber(ARGV[14]) then return {'max_bytes', ARGV[14]} end
end
call('SETBIT', DONE, ARGV[4], 1)
call('HDEL', FAILURES, ARGV[4], ARGV[4] .. '\0')
local results = call('HINCRBY', RECORD, 'results', 1)
call('HSET', RESULTS, results - 1, ARGV[5])
call('HINCRBY', RECORD, 'bytes', #ARGV[5])
call('HINCRBY', RECORD, 'failed', ARGV[6])
if ARGV[15] ~= '0' then call('HINCRBY', RECORD, ARGV[6] == '1' and 'errors' or 'written', ARGV[15]) end
call('HINCRBY', RECORD, 'prompt', ARGV[7])
call('HINCRBY', RECORD, 'output', ARGV[8])
call('HINCRBY', RECORD, 'cached', ARGV[9])
if ARGV[16] ~= '0' then call('HINCRBY', RECORD, 'reasoning', ARGV[16]) end
call('HINCRBYFLOAT', RECORD, 'gpu', ARGV[10])
call('HINCRBYFLOAT', RECORD, 'cost', ARGV[11])
count('bytes', get('tenant'), #ARGV[5])
if results == number('items') then finish('succeeded', tonumber(ARGV[12])) end
return 1
