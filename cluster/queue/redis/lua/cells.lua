-- Note how many cells the pool has, where that is another number than before, and return what is on record.
--
-- Keys: names.lua, of the pool's first cell. ARGV: common.lua.
-- A: "", number of cells (0: only read), most that the caller has read of in a record that may be lost (0: the number
--    is news), time after a change in which homes do not move (ms)
-- Reply: {number, number before the last change, most that it ever had, ms since the last change or -1}

Q.pass_when_full()
Q.open_pool()
local found = call('HMGET', K[CONTROL], 'cells', 'cells_before', 'cells_most', 'cells_at')
local count, before = tonumber(found[1] or 1), tonumber(found[2] or 1)
local most, at = tonumber(found[3] or 1), tonumber(found[4] or -1)
if A[3] > 0 then
  if not found[1] and A[3] > 1 then
    -- The record was lost with the data. Homes are where they were, so it is no change.
    count, before, most, at = A[2], A[2], A[3], -1
    call('HSET', K[CONTROL], 'cells', count, 'cells_before', before, 'cells_most', most, 'cells_at', -1)
  end
elseif A[2] > 0 and A[2] ~= count then
  -- A new pool has nothing in its only cell that would have to be looked for there. One that has served may get it
  -- there still: not all routers know of the change yet.
  local served = P[P_GRANTED] + P[P_GRANTED + 1] + P[P_GRANTED + 2] > 0
  local bare = not found[1] and not served and call('EXISTS', K[CLIENT_KEYS], K[QUOTAS], K[OPEN_COUNTS]) == 0
  -- Homes have not moved yet after a change a moment ago.
  if at < 0 or Q.now - at >= A[4] then before = count end
  count, most = A[2], math.max(most, A[2])
  at = bare and -1 or Q.now
  call('HSET', K[CONTROL], 'cells', count, 'cells_before', before, 'cells_most', most, 'cells_at', string.format('%d', at))
end
return {count, before, most, at < 0 and -1 or Q.now - at}
