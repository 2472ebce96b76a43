-- Return records of some requests, newest first.
--
-- ARGV: 1 tenant, or "" for all; 2 most requests; 3 1 for those that missed their SLO only, else 0
-- Reply: records
local PAGE = 256
local MOST = 16384 -- most requests that are looked at

local tenant, limit, missed = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local found = {}

local function take(id)
  local record = call('HGET', RECORDS, id)
  if record then found[#found + 1] = record end
end

if tenant == '' then
  local members = call('ZRANGE', missed and MISSED or RECENT, -limit, -1)
  for i = #members, 1, -1 do
    local _, id = split(members[i])
    take(id)
  end
  return found
end
for first = 0, MOST - 1, PAGE do
  local page = call('ZREVRANGEBYLEX', TENANTS, '(' .. tenant .. '\1', '[' .. tenant .. '\0', 'LIMIT', first, PAGE)
  for _, name in ipairs(page) do
    if #found >= limit then return found end
    local _, id = split(name)
    if not missed or call('ZSCORE', MISSED, tenant .. '\0' .. id) then take(id) end
  end
  if #page < PAGE then break end
end
return found
