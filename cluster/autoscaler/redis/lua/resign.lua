-- Give the lease back, so that another autoscaler need not wait for its end.
--
-- Keys: common.lua. ARGV: 2 caller
-- Reply: 1 given back; 0 another one has it

if get('holder') ~= ARGV[2] then return 0 end
call('HSET', CONTROL, 'holder', '', 'until', '0')
return 1
