-- Shared: the ledger, one line per tenant and day of pool time (UTC if Redis' clock is right), and the settlement of
-- charges.

-- Replace an entry's estimated charges by its real use, for its share and its quota.
function Q.settle(e, ran, output)
  if e[CHARGED] >= 0 then
    local used = ran and output or 0
    -- The prompt of a resume was charged to its first attempt.
    if ran and e[RESUME] == 0 then used = used + e[PROMPT] end
    local correction = used - e[CHARGED]
    if e[COUNTED] >= 1 then
      local counted = correction - (e[COUNTED] - 1)
      Q.set(P_S + e[CLASS], P[P_S + e[CLASS]] + counted)
      Q.set(P_SERVED, P[P_SERVED] + counted)
    end
    Q.serve(e[CLASS], e[TENANT], correction / e[WEIGHT], false)
  end
  if e[HELD_TOKENS] > 0 then
    if ran then Q.note_output(e[TENANT], output) end
    Q.settle_quota(e, ran and e[PROMPT] + output or 0)
  end
end

-- Forget an entry that left the line by an order.
function Q.forget_ordered(id, e)
  -- An expired entry never ran, even if it was granted: `requeue` removes the bound on the wait.
  if e[ORDER] == 'e' and e[START_BY] > 0 then Q.settle(e, false, 0) end
  Q.forget(id, e)
end

-- Add use to the tenant's line of today: requests, prompt tokens, output tokens, cached tokens, GPU-seconds, cost. The
-- same numbers by hour follow in the line, so that they cost no command of their own.
function Q.enter_ledger(e, ...)
  if tonumber(ARGV[17]) == 0 then return end
  -- What is no number fails here, before anything is added: `turn` stores the line also if this call fails.
  local used = {...}
  for i = 1, 6 do used[i] = used[i] + 0 end
  if e[REPLICA] ~= '' then Q.note_settled(e[REPLICA], used[5], used[6]) end
  local day = math.floor(Q.now / 86400000)
  local field = Q.ledger_field(day, e[TENANT])
  local line = Q.today(field)
  if not line then
    line = {0, 0, 0, 0, 0, 0}
    if Q.lines then
      Q.new_lines[#Q.new_lines + 1] = day
      Q.new_lines[#Q.new_lines + 1] = field
    else
      call('ZADD', K[LEDGER_DAYS], day, field)
    end
    Q.drop_hours(day - HOUR_DAYS, e[TENANT])
  end
  local hour, last = math.floor(Q.now / 3600000) % 24, #line - 6
  if last == 0 or line[last] ~= hour then
    last = #line + 1
    line[last] = hour
    for i = 1, 6 do line[last + i] = 0 end
  end
  for i = 1, 6 do line[i], line[last + i] = line[i] + used[i], line[last + i] + used[i] end
  if Q.lines then Q.lines[field] = line else call('HSET', K[LEDGER], field, cmsgpack.pack(line)) end
end

function Q.ledger_field(day, tenant) return string.format('%d', day) .. '\0' .. tenant end

-- Return a tenant's line of today, or nil. `turn` keeps it in `lines` for its further calls, and stores it at the end.
function Q.today(field)
  if Q.lines and Q.lines[field] then return Q.lines[field] end
  local packed = Q.ledger_line(field)
  return packed and cmsgpack.unpack(packed)
end

function Q.ledger_line(field)
  local packed = Q.ledger_ahead[field]
  if packed == nil then return call('HGET', K[LEDGER], field) end
  return packed
end

-- Keep only the sum of a tenant's old day.
function Q.drop_hours(day, tenant)
  local field = Q.ledger_field(day, tenant)
  local packed = Q.ledger_line(field)
  if not packed then return end
  local line = cmsgpack.unpack(packed)
  call('HSET', K[LEDGER], field, cmsgpack.pack({line[1], line[2], line[3], line[4], line[5], line[6]}))
end

-- Remove lines that are older than the settings keep, all of them if the settings keep none; at most KEYS_PER_CALL.
function Q.tidy_ledger()
  local last = math.floor(Q.now / 86400000) - tonumber(ARGV[17])
  for _, old in ipairs(call('ZRANGEBYSCORE', K[LEDGER_DAYS], '-inf', last, 'LIMIT', 0, KEYS_PER_CALL)) do
    call('ZREM', K[LEDGER_DAYS], old)
    call('HDEL', K[LEDGER], old)
  end
end
