-- Name jobs that may be claimed, longest wait first, and jobs that are due.
--
-- Keys: common.lua; those of one job are not used. ARGV: 3 most ids of each, 4 lease ms
-- Reply: {ids to claim, ids that are due, the store's time (ms)}

local most = tonumber(ARGV[3])
local open = call('ZRANGEBYSCORE', OPEN, '-inf', NOW, 'LIMIT', 0, most)
-- The second condition of `is_due` in common.lua.
local left = call('ZRANGEBYSCORE', OPEN, '(' .. text(NOW + 2 * tonumber(ARGV[4])), '+inf', 'LIMIT', 0, most - #open)
for _, id in ipairs(left) do open[#open + 1] = id end
return {open, call('ZRANGEBYSCORE', DUE, '-inf', NOW, 'LIMIT', 0, most), NOW}
