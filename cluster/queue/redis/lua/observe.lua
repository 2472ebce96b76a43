-- Read the autoscaler's view of the pool. Change nothing; this is no heartbeat.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: ""
-- Reply: {pool time (ms), run id, replicas as in heartbeat_router, flat list of (router, age (ms), report),
--         waiting per class, longest wait per class (ms), running, operating point or nil, live routers}

Q.open_pool()
local reports = {}
local live = Q.live_names(K[ROUTERS])
for _, router in ipairs(live) do
  local packed = call('HGET', K[REPORTS], router)
  if packed then
    local report = cmsgpack.unpack(packed)
    reports[#reports + 1] = router
    reports[#reports + 1] = Q.now - report[1]
    reports[#reports + 1] = report[2]
  end
end

local waiting, longest = {}, {}
for class = 0, 2 do
  waiting[class + 1] = Q.count(K[LINE], class .. '\0')
  local wait = 0
  -- A tenant's oldest entry is its first one, or its first late one. A part of the tenants is enough to notice that
  -- entries wait too long.
  for _, tenant in ipairs(call('ZRANGE', K[ACTIVE + class], 0, TENANTS_SEEN - 1)) do
    local first = Q.members(K[LINE], class .. '\0' .. tenant .. '\0', 1)[1]
    if first then wait = math.max(wait, Q.now - Q.get(Q.split(first)[4])[SUBMITTED]) end
    local late = Q.late_head(class, tenant)
    if late then wait = math.max(wait, Q.now - Q.get(late)[SUBMITTED]) end
  end
  longest[class + 1] = wait
end
local run_id = Q.store_id()
return {Q.now, run_id, Q.list_replicas(Q.live_names(K[REPLICAS])), reports, waiting, longest, call('ZCARD', K[SLOTS]),
  Q.orders()[1], live}
