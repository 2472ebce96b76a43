-- Store a decision and the values that follow from it, if the caller still leads.
--
-- Keys: common.lua. ARGV: 2 caller, 3 its fence, 4 state, 5 target, 6 relief, 7 pool time until which relief holds
-- (ms), 8 record of the decision, 9 number of records to keep, 10 replicas that stand by, each between line ends, until
-- that time too
-- Reply: the decision's number; 0 when another one leads

if get('holder') ~= ARGV[2] or get('fence') ~= ARGV[3] then return 0 end
local number = call('HINCRBY', CONTROL, 'decision', 1)
call('HSET', CONTROL, 'state', ARGV[4], 'target', ARGV[5], 'relief', ARGV[6], 'relief_until', ARGV[7],
  'standby', ARGV[10], 'standby_until', ARGV[7])
call('LPUSH', DECISIONS, text(number) .. ' ' .. ARGV[8])
call('LTRIM', DECISIONS, 0, ARGV[9] - 1)
return number
