-- Tell the owner of a response that it should end.
--
-- Reply: 1 told; 0 it does not run

pass_when_full()
if not is_running() then return 0 end
call('HSET', RESPONSE, 'cancelled', 1)
return 1
