-- Shared: keys that are lost. Redis may evict one key of a pool, or somebody deletes it, while the others stay.

-- Whether a key of the requests is lost. They refer to each other, so their sizes tell. Every entry is in the line, has
-- a slot, is parked or is under an order; every one has an owner; a tenant is in a class's list while the line has
-- entries of it.
function Q.torn()
  local entries, line = call('HLEN', K[ENTRIES]), call('ZCARD', K[LINE])
  if entries < line + call('ZCARD', K[SLOTS]) or call('ZCARD', K[OWNERS]) < entries then return true end
  for class = 0, 2 do
    local waiting = line > 0 and Q.count(K[LINE], class .. '\0') > 0
    if (call('EXISTS', K[ACTIVE + class]) == 1) ~= waiting then return true end
  end
  return false
end

-- Forget all requests and leases, as if Redis had been emptied: without one of their keys the others are worthless.
-- Routers put what waits in line again, because the store has another identity then, and replicas report what runs.
-- Clients' keys, results, quotas, the ledger and the autoscaler's orders stay.
function Q.forget_requests()
  call('UNLINK', K[ENTRIES], K[LINE], K[ACTIVE], K[ACTIVE + 1], K[ACTIVE + 2], K[IDLE], K[IDLE + 1], K[IDLE + 2],
    K[OWNERS], K[SLOTS], K[LOAD], K[FREE], K[REGISTRY], K[REPLICAS], K[ROUTERS], K[PARTED], K[LINKS], K[SKIPS],
    K[PREFS], K[DEADLINES], K[BELLS], K[OPEN_COUNTS], K[OUTSTANDING], K[REPORTS])
  Q.forget_counts()
  if Q.new then return end
  for class = 0, 2 do P[P_V + class], P[P_S + class] = 0, 0 end
  P[P_SERVED], P[P_YIELDING], P[P_TICK] = 0, 0, 0
  P[P_BORN], P[P_VERSION] = math.max(P[P_BORN] + 1, Q.raw), P[P_VERSION] + 1
  if P[P_LATE] then P[P_LATE] = 0 end
  Q.changed = true
end

-- Look at one of many, chosen by chance, that would never be removed because a list of what is due lost it. Each
-- heartbeat does, so after a while each had its turn.
function Q.mend_lists()
  if P[P_RESULTS] ~= 0 and call('EXISTS', K[RESULTS]) == 0 then Q.set(P_RESULTS, 0) end
  local member = call('ZRANDMEMBER', K[OWNERS])
  if member then
    local parts = Q.split(member)
    -- A router whose waiting entries are due is always in one of the two lists that this looks at.
    if parts[2] == 'w' or parts[2] == 'p' then Q.know_router(parts[1]) end
  end
  local field = call('HRANDFIELD', K[CLIENT_KEYS])
  if field and not call('ZSCORE', K[KEY_DUE], field) then
    local request = cmsgpack.unpack(call('HGET', K[CLIENT_KEYS], field))[1]
    if Q.is_live(request) == 0 then call('ZADD', K[KEY_DUE], Q.now + tonumber(ARGV[15]), field) end
  end
  for _, key in ipairs({QUOTAS, OUTPUTS, BUDGETS}) do
    local tenant = call('HRANDFIELD', K[key])
    if tenant then call('ZADD', K[TENANT_DUE], 'NX', Q.now + 3600000, tenant) end
  end
  if call('ZCARD', K[LEDGER_DAYS]) < call('HLEN', K[LEDGER]) then
    for _, line in ipairs(call('HRANDFIELD', K[LEDGER], KEYS_PER_CALL)) do
      call('ZADD', K[LEDGER_DAYS], Q.split(line)[1], line)
    end
  end
end
