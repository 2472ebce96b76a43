-- Name responses whose owner is silent, longest silence first, and responses that are due.
--
-- Keys: common.lua; those of one response or tenant are not used. ARGV: 4 lease ms, 5 most of each
-- Reply: {members whose lease has ended, members that are due}

local most = tonumber(ARGV[5])
local silent = call('ZRANGEBYSCORE', OPEN, '-inf', text(NOW), 'LIMIT', 0, most)
-- From before the clock was set back, as in claim.lua.
local left = call('ZRANGEBYSCORE', OPEN, '(' .. text(NOW + 2 * tonumber(ARGV[4])), '+inf', 'LIMIT', 0, most - #silent)
for _, member in ipairs(left) do silent[#silent + 1] = member end
return {silent, call('ZRANGEBYSCORE', DUE, '-inf', text(NOW), 'LIMIT', 0, most)}
