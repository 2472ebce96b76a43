-- Count again what jobs count against the limits, after Redis lost a record or the counts.
--
-- Keys: common.lua; those of one job are not used. Further ones: the records of the jobs in ARGV. ARGV: 3 and further:
-- every job
-- Reply: 1 counted; 0 these are not all jobs

if call('ZCARD', DUE) ~= #ARGV - 2 then return 0 end
for i = 3, #ARGV do
  if not call('ZSCORE', DUE, ARGV[i]) then return 0 end
end
pass_when_full()
call('UNLINK', USAGE)
for i = 3, #ARGV do
  local found = call('HMGET', KEYS[11 + i], 'tenant', 'items', 'bytes', 'holder')
  if found[1] then
    count('jobs', found[1], 1)
    count('items', found[1], tonumber(found[2]) or 0)
    count('bytes', found[1], tonumber(found[3]) or 0)
    if found[4] and found[4] ~= '' then count('feeding', found[1], 1) end
  end
end
return 1
