-- Read the line by class and tenant, who holds the slots, what tenants have used of their quotas, and what is ahead of
-- some entries. Change nothing; this is no heartbeat. The work is bounded, whatever waits or runs.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: flat list of waiting entries of which to tell what is ahead, at most WAITS_SEEN
-- Reply: {pool time (ms), waiting per class, tenants in line per class,
--         flat list of (class, tenant, waiting, age of its oldest (ms), service above the least of its class (tokens),
--         weight in thousandths), tokens served per class while classes competed,
--         flat list of (class, tenant, slots held), slots looked at, slots held,
--         flat list of (tenant, tokens used, tokens per minute, requests used, requests per minute, open), rates are 0
--         where no bound is known,
--         flat list of (id, entries of its tenant ahead, how often it was passed over)}

Q.open_pool()
local waiting, tenants, lines, met = {}, {}, {}, {}

local function meet(tenant)
  if not met[tenant] then
    met[tenant] = true
    met[#met + 1] = tenant
  end
end

for class = 0, 2 do
  waiting[class + 1] = Q.count(K[LINE], class .. '\0')
  tenants[class + 1] = call('ZCARD', K[ACTIVE + class])
  local page = call('ZRANGE', K[ACTIVE + class], 0, LINE_TENANTS - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    local tenant = page[i]
    local first = Q.members(K[LINE], class .. '\0' .. tenant .. '\0', 1)[1]
    local e = first and Q.get(Q.split(first)[4])
    if e then
      local since = e[SUBMITTED]
      local late = Q.late_head(class, tenant)
      if late then since = math.min(since, Q.get(late)[SUBMITTED]) end
      for _, field in ipairs({class, tenant, Q.count(K[LINE], Q.tenant_prefix(e)), math.max(0, Q.now - since),
          math.floor(tonumber(page[i + 1]) - tonumber(page[2])), math.floor(e[WEIGHT] * 1000 + 0.5)}) do
        lines[#lines + 1] = field
      end
      meet(tenant)
    end
  end
end

-- Who holds the slots. Of many slots only some are looked at, others with each call.
local held, seen, order, holders = call('ZCARD', K[SLOTS]), 0, {}, {}
if held > 0 then
  local from = held > SLOTS_SEEN and math.floor(Q.now / 250) * SLOTS_SEEN % held or 0
  local ids = {}
  for i, member in ipairs(call('ZRANGE', K[SLOTS], from, from + SLOTS_SEEN - 1)) do ids[i] = Q.split(member)[3] end
  for _, packed in ipairs(call('HMGET', K[ENTRIES], unpack(ids))) do
    if packed then
      local e = cmsgpack.unpack(packed)
      local name = Q.tenant_prefix(e)
      if not holders[name] then
        holders[name] = {e[CLASS], e[TENANT], 0}
        order[#order + 1] = name
      end
      holders[name][3] = holders[name][3] + 1
      seen = seen + 1
    end
  end
end
local holding = {}
for _, name in ipairs(order) do
  for _, field in ipairs(holders[name]) do holding[#holding + 1] = field end
end

-- Quotas of the tenants in line, and of those that used theirs last: these may be refused, and are in no line then.
for _, tenant in ipairs(call('ZRANGE', K[TENANT_DUE], -QUOTAS_SEEN, -1)) do meet(tenant) end
local used = {}
if #met > 0 then
  local stored, opened = call('HMGET', K[QUOTAS], unpack(met)), call('HMGET', K[OPEN_COUNTS], unpack(met))
  for i, tenant in ipairs(met) do
    local open = tonumber(opened[i] or 0)
    if stored[i] or open > 0 then
      local use = stored[i] and cmsgpack.unpack(stored[i]) or {0, Q.now, 0, Q.now}
      local tokens, requests = use[5] or 0, use[6] or 0
      local in_tokens = tokens > 0 and Q.brought(use[1], use[2], tokens, tokens) or 0
      local in_requests = requests > 0 and Q.brought(use[3], use[4], requests, requests) or 0
      for _, field in ipairs({tenant, math.ceil(in_tokens), tokens, math.ceil(in_requests), requests, open}) do
        used[#used + 1] = field
      end
    end
  end
end

local ahead = {}
for i = 1, math.min(#A[1], WAITS_SEEN) do
  local id = A[1][i]
  local e = Q.get(id)
  if e and e[STATE] == 'w' then
    ahead[#ahead + 1] = id
    ahead[#ahead + 1] = call('ZLEXCOUNT', K[LINE], '[' .. Q.tenant_prefix(e), '(' .. Q.line_member(id, e))
    ahead[#ahead + 1] = Q.skips_of(id)
  end
end
return {Q.now, waiting, tenants, lines, {math.floor(P[P_S]), math.floor(P[P_S + 1]), math.floor(P[P_S + 2])}, holding,
  seen, held, used, ahead}
