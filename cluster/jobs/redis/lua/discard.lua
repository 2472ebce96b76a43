-- Delete results of a job that has ended. They are removed once nothing of them is wanted.
--
-- Keys: common.lua. ARGV: 3 names of what is deleted, 4 1 to remove the results
-- Reply: 1 done; 0 no job that has ended

pass_when_full()
local state = get('state')
if state == '' or state == 'uploading' or is_open(state) then return 0 end
call('HSET', RECORD, 'dropped', ARGV[3])
if ARGV[4] == '1' then
  call('UNLINK', RESULTS)
  if not OWN then call('ZREM', HOLDS, ID) end
  count('bytes', get('tenant'), -number('bytes'))
  call('HSET', RECORD, 'bytes', 0)
end
return 1
