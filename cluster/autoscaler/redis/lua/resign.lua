-- Give the lease back, so that another one need not wait for its end.
--
-- Keys: common.lua. ARGV: 2 who gives it back
-- Reply: 1 given back; 0 it was another's

if get('holder') ~= ARGV[2] then return 0 end
call('HSET', CONTROL, 'holder', '', 'until', '0')
return 1
