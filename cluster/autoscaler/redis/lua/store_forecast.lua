-- Store the record of the pool's load, if the caller still leads.
--
-- Keys: common.lua. ARGV: 2 caller, 3 its fence, 4 record
-- Reply: 1 stored; 0 when another one leads

if get('holder') ~= ARGV[2] or get('fence') ~= ARGV[3] then return 0 end
call('SET', FORECAST, ARGV[4])
return 1
