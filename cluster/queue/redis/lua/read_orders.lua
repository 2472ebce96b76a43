-- Read the autoscaler's orders as the pool's first cell has them, for its other cells.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: ""
-- Reply: {operating point or nil, relief, ms until it ends, standby as in names.lua or nil, ms until that ends}

Q.open_pool()
local found = call('HMGET', K[CONTROL], 'point', 'relief', 'relief_until', 'standby', 'standby_until')
local function left(till) return math.max(0, math.ceil((tonumber(till) or 0) - Q.now)) end
return {found[1], found[2] or 'none', left(found[3]), found[4], left(found[5])}
