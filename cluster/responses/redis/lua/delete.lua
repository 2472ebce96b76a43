-- Forget a response.
--
-- ARGV: 4 token without which it is left alone, or ""
-- Reply: 1 done; 0 there was none, or the token does not hold it

pass_when_full()
if not is_here() then
  -- Its record is lost, or the id is another tenant's.
  call('ZREM', OPEN, MEMBER)
  call('ZREM', DUE, MEMBER)
  call('ZREM', ENDED, ID)
  return 0
end
if ARGV[4] ~= '' and not is_held(ARGV[4]) then return 0 end
count('bytes', -(tonumber(get('bytes')) or 0))
if get('result') == '' then count('running', -1) end
call('UNLINK', RESPONSE, JOURNAL)
call('ZREM', OPEN, MEMBER)
call('ZREM', DUE, MEMBER)
call('ZREM', ENDED, ID)
return 1
