-- Shared: GPU time of the pool by kind, one line per hour of pool time. The kinds: 1 total, 2 requests, 3 starting,
-- 4 idle, 5 draining, 6 lost, 7 running, 8 standby. A line has seconds of 1 to 7, their prices, charges, and then the
-- seconds and the price of 8, which lines of the last release lack.

-- Add GPU-seconds by kind and charges to one hour.
function Q.add_costs(hour, added, part, price, charged)
  local day = math.floor(hour / 24)
  local field = string.format('%d\0\0%d', day, hour)
  local packed = call('HGET', K[LEDGER], field)
  local line = packed and cmsgpack.unpack(packed)
  if not line then
    line = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
    call('ZADD', K[LEDGER_DAYS], day, field)
  end
  for kind = 1, 7 do
    line[kind] = line[kind] + added[kind] * part
    line[7 + kind] = line[7 + kind] + added[kind] * part * price
  end
  line[15] = line[15] + charged
  line[16] = (line[16] or 0) + added[8] * part
  line[17] = (line[17] or 0) + added[8] * part * price
  call('HSET', K[LEDGER], field, cmsgpack.pack(line))
end

-- Spread GPU-seconds evenly over the hours of the last `span` ms. Charges go to the newest hour.
function Q.spread_costs(added, span, price, charged)
  -- Whole milliseconds, so that the parts add up to 1 exactly: `now` has few bits left for fractions.
  span = math.max(math.floor(span + 0.5), 1)
  local newest = math.floor(Q.now / 3600000)
  local from = Q.now - span
  local oldest = math.max(math.floor(from / 3600000), newest - HOURS_PER_ACCOUNT + 1)
  for hour = oldest, newest do
    local begins = hour == oldest and from or hour * 3600000
    local part = (math.min(Q.now, (hour + 1) * 3600000) - begins) / span
    Q.add_costs(hour, added, part, price, hour == newest and charged or 0)
  end
end

-- Enter what is new in a replica's account. Nothing counts twice, because accounts are totals: the difference to the
-- account as last heard is added. `told`: that account as the replica knows it, where the store has lost it or never
-- had it; "" for none. `settled`, `charged`: of its attempts, since the last account.
function Q.enter_times(replica, times, told, settled, charged)
  if tonumber(ARGV[17]) == 0 then return end
  local packed = call('HGET', K[METERS], replica)
  local m = packed and cmsgpack.unpack(packed) or told
  -- A total that fell belongs to another process with the same name.
  if m == '' or times[M_TOTAL] < m[M_TOTAL] then m = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0} end
  local total = times[M_TOTAL] - m[M_TOTAL]
  local ended = times[M_ENDED] - m[M_ENDED]
  Q.spread_costs({total, settled, times[M_STARTING] - m[M_STARTING], times[M_IDLE] - m[M_IDLE],
    times[M_DRAINING] - m[M_DRAINING], ended - settled, times[M_RUNNING] - m[M_RUNNING],
    (times[M_STANDBY] or 0) - (m[M_STANDBY] or 0)},
    total / times[M_GPUS] * 1000, times[M_PRICE], charged)
  times[M_HEARD] = Q.now
  call('HSET', K[METERS], replica, cmsgpack.pack(times))
end

-- Enter an attempt's settlement. The replica's load carries it to its next heartbeat, so that it costs no command here.
function Q.note_settled(replica, gpu_seconds, charged)
  local l = Q.get_load(replica)
  if l and l[SETTLED] then
    l[SETTLED], l[SETTLED_COST] = l[SETTLED] + gpu_seconds, l[SETTLED_COST] + charged
    return -- stored by free_slot
  end
  -- The replica is gone. What it used was counted as lost.
  local packed = call('HGET', K[METERS], replica)
  if packed then Q.enter_times(replica, cmsgpack.unpack(packed), '', gpu_seconds, charged) end
end

-- Close the account of a replica that loses its lease; `l`: its load. Its running attempts are lost, and so is the time
-- since its last heartbeat, `silent` (ms). If it comes back its totals take both back.
function Q.close_account(replica, l, silent)
  local packed = call('HGET', K[METERS], replica)
  if not packed then return end
  local times = cmsgpack.unpack(packed)
  local gap = silent / 1000 * times[M_GPUS]
  times[M_TOTAL] = times[M_TOTAL] + gap
  times[M_ENDED], times[M_RUNNING] = times[M_ENDED] + times[M_RUNNING] + gap, 0
  Q.enter_times(replica, times, '', l and l[SETTLED] or 0, l and l[SETTLED_COST] or 0)
end

-- Look at one account, chosen by chance, and forget it if its replica has been gone for long.
function Q.tidy_meters()
  local replica = call('HRANDFIELD', K[METERS])
  if not replica or call('ZSCORE', K[REPLICAS], replica) then return end
  local heard = cmsgpack.unpack(call('HGET', K[METERS], replica))[M_HEARD]
  if Q.now - heard > METER_MS then call('HDEL', K[METERS], replica) end
end
