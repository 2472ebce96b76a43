-- Mark a content that kills engines, or only read the marks.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, digest of the content ("" only reads), incident, how long it stays marked (ms)
-- Reply: {count of writes, flat list of (digest, incident, left (ms))}

Q.pass_when_full()
Q.open_pool()
local left = {}
local stored = call('HGETALL', K[QUARANTINED])
for i = 1, #stored, 2 do
  local mark = cmsgpack.unpack(stored[i + 1])
  if mark[2] > Q.now and stored[i] ~= A[2] then
    left[#left + 1] = {stored[i], mark[1], mark[2] - Q.now}
  elseif A[2] ~= '' then
    call('HDEL', K[QUARANTINED], stored[i])
  end
end
if A[2] ~= '' then
  table.sort(left, function(a, b) return a[3] > b[3] end)
  while #left >= MARKS do call('HDEL', K[QUARANTINED], table.remove(left)[1]) end
  call('HSET', K[QUARANTINED], A[2], cmsgpack.pack({A[3], Q.now + A[4]}))
  if A[4] > 0 then left[#left + 1] = {A[2], A[3], A[4]} end
  Q.set(P_MARKS, (P[P_MARKS] or 0) + 1)
end
Q.close_pool()
local flat = {}
for _, mark in ipairs(left) do
  for _, part in ipairs(mark) do flat[#flat + 1] = part end
end
return {P[P_MARKS] or 0, flat}
