-- Read a part of the ledger: one call looks at no more than LINES_PER_CALL lines.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: tenant ("" for all), first day, last day, most lines, where the last call stopped ("" at the beginning)
-- Reply: {where the next call continues, "" at the end; list of {"day\0tenant", packed line}}

local tenant, first, last, most, cursor = A[1], A[2], A[3], A[4], A[5]
local fields, following = {}, ''
if tenant ~= '' then
  -- A tenant has one line a day, whose field name is known. `cursor`: first day of this call.
  local oldest = call('ZRANGE', K[LEDGER_DAYS], 0, 0, 'WITHSCORES')[2]
  if not oldest then return {'', {}} end
  local newest = call('ZRANGE', K[LEDGER_DAYS], -1, -1, 'WITHSCORES')[2]
  first = math.max(cursor == '' and first or tonumber(cursor), tonumber(oldest))
  last = math.min(last, tonumber(newest))
  local till = math.min(last, first + LINES_PER_CALL - 1)
  for day = first, till do fields[#fields + 1] = string.format('%d', day) .. '\0' .. tenant end
  if till < last then following = string.format('%d', till + 1) end
else
  -- `cursor`: last field that was read. Only the oldest lines are ever removed, so if it is gone all before it is, too.
  local after = cursor ~= '' and call('ZRANK', K[LEDGER_DAYS], cursor)
  if after then
    after = after + 1
  else
    after = call('ZCOUNT', K[LEDGER_DAYS], '-inf', '(' .. first)
  end
  local left = call('ZCOUNT', K[LEDGER_DAYS], '-inf', last) - after
  local n = math.min(left, LINES_PER_CALL, most)
  if n > 0 then fields = call('ZRANGE', K[LEDGER_DAYS], after, after + n - 1) end
  if n < left then following = fields[#fields] end
end
if #fields == 0 then return {'', {}} end

local lines = {}
for i, packed in ipairs(call('HMGET', K[LEDGER], unpack(fields))) do
  -- The others are costs by hour.
  if packed and #lines < most and not string.find(fields[i], '\0\0', 1, true) then
    lines[#lines + 1] = {fields[i], packed}
  end
end
return {following, lines}
