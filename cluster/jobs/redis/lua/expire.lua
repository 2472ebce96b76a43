-- Expire a job that is due and open, and forget any other job that is due.
--
-- Keys: common.lua. ARGV: 3 ttl ms
-- Reply: 1 done; 0 not due; 2 only what was left of a job without a record

pass_when_full()
local due = tonumber(call('ZSCORE', DUE, ID))
if not due or due > NOW then return 0 end
if is_open(get('state')) then
  finish('expired', tonumber(ARGV[3]))
elseif get('state') == '' then
  drop_rest()
  return 2
else
  remove()
end
return 1
