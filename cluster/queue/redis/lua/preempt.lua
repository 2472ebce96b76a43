-- Shared: preemption, the choice of the batch work that gives way.

-- Order BATCH sequences of a replica to give way if INTERACTIVE entries have waited too long because of missing room:
-- the one with the least work to redo first, none in its first quantum, none more than `max_preemptions` times, and not
-- below the class's reserved share. `produced`: "id\0attempt" -> output tokens of everything that runs there; -1 if it
-- can't continue on another replica.
function Q.preempt(replica, l, produced)
  local after = tonumber(ARGV[12])
  if after == 0 or l[R_STATE] ~= 'ready' or call('ZCARD', K[ACTIVE]) == 0 then return end
  if Q.share(2) > 0 and P[P_SERVED] > 0 and P[P_S + 2] < Q.share(2) * P[P_SERVED] and not Q.batch_yields() then return end

  local quantum, most = tonumber(ARGV[13]), tonumber(ARGV[14])
  local sequences = l[W_SEQUENCES] - l[HELD] - l[EXTRA]
  local kv, victims, elsewhere = l[W_KV] - l[USED_KV], {}, P[P_YIELDING]
  for _, member in ipairs(Q.members(K[SLOTS], replica .. '\0r\0')) do
    local parts = Q.split(member)
    local id, tokens = parts[3], produced[parts[3] .. '\0' .. parts[4]]
    local e = tokens and Q.get(id)
    if e and e[ORDER] ~= '' then
      sequences, kv = sequences + 1, kv + e[KV]
      if e[ORDER] == 'f' then elsewhere = elsewhere - 1 end
    elseif e and e[CLASS] == 2 and tokens >= 0 and e[PREEMPTIONS] < most and Q.now - e[GRANTED] >= quantum then
      victims[#victims + 1] = {e[PROMPT] + tokens, id, e}
    end
  end
  if #victims == 0 then return end

  local due, suiting = {}, 0
  local function consider(e)
    if Q.now - e[SUBMITTED] >= after and Q.suits(replica, l, e) then
      suiting = suiting + 1
      -- Sequences on other replicas that were told to give way already make room for this one.
      if elsewhere > 0 then elsewhere = elsewhere - 1 else due[#due + 1] = e end
    end
  end
  local following, scanned = Q.class_candidates(0, PREEMPT_SCAN), 0
  for _ = 1, PREEMPT_SCAN do
    local id, tenant = following()
    if not id then break end
    local e = Q.get(id)
    tenant[2] = tenant[2] + (e[PROMPT] + e[EXPECTED]) / e[WEIGHT]
    scanned = scanned + 1
    consider(e)
  end
  if suiting == 0 and scanned == PREEMPT_SCAN then
    -- Perhaps the routers of all these do not reach this replica, and other routers do.
    local ids = Q.reachable(replica, {0}, {})
    for at = 1, math.min(#ids, PREEMPT_SCAN) do consider(Q.get(ids[at])) end
  end
  table.sort(victims, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  local taken = 0
  for _, e in ipairs(due) do
    local from = taken
    while (sequences < 1 or kv < e[KV]) and victims[taken + 1] do
      taken = taken + 1
      sequences, kv = sequences + 1, kv + victims[taken][3][KV]
    end
    if sequences < 1 or kv < e[KV] then
      -- Even all of them would not make room.
      taken = from
      break
    end
    sequences, kv = sequences - 1, kv - e[KV]
  end
  for i = 1, taken do Q.order(victims[i][2], victims[i][3], 'f') end
end
