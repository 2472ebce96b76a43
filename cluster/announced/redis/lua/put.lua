-- Keep an announcement, in place of the tenant's one of the same id.
--
-- ARGV: 2 tenant, 3 id, 4 end in ms, 5 record, 6 most of the tenant, 7 most of the pool
-- Reply: 1 stored; 0 the tenant has as many others as it may; -1 the pool has

local field, prefix = ARGV[2] .. '/' .. ARGV[3], ARGV[2] .. '/'
local all, own, others = kept(), 0, 0
for i = 1, #all, 2 do
  if all[i] ~= field then
    others = others + 1
    if string.sub(all[i], 1, #prefix) == prefix then own = own + 1 end
  end
end
if own >= tonumber(ARGV[6]) then return 0 end
if others >= tonumber(ARGV[7]) then return -1 end
call('HSET', ANNOUNCED, field, ARGV[4] .. ' ' .. ARGV[5])
return 1
