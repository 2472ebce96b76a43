-- Name jobs that may be claimed, longest wait first, jobs that are due, and some jobs to check.
--
-- Keys: common.lua; those of one job are not used. ARGV: 3 most ids of each, 4 lease ms, 5 rank of the first job to check
-- Reply: {ids to claim, ids that are due, the store's time (ms), ids to check by their time, members of the indexes
--         to check, 1 if the counts are lost else 0}

local most = tonumber(ARGV[3])
local open = call('ZRANGEBYSCORE', OPEN, '-inf', NOW, 'LIMIT', 0, most)
-- The second condition of `is_due` in common.lua.
local left = call('ZRANGEBYSCORE', OPEN, '(' .. text(NOW + 2 * tonumber(ARGV[4])), '+inf', 'LIMIT', 0, most - #open)
for _, id in ipairs(left) do open[#open + 1] = id end
local first = tonumber(ARGV[5])
local check, indexed = call('ZRANGE', DUE, first, first + 7), call('ZRANGE', INDEX, first, first + 7)
for _, member in ipairs(call('ZRANGE', FILES, first, first + 7)) do indexed[#indexed + 1] = member end
local uncounted = call('EXISTS', USAGE) == 0 and call('EXISTS', DUE) == 1 and 1 or 0
return {open, call('ZRANGEBYSCORE', DUE, '-inf', NOW, 'LIMIT', 0, most), NOW, check, indexed, uncounted}
