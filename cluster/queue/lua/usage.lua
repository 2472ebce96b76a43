-- Read the ledger.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: tenant ("" for all), first day, last day, most lines
-- Reply: list of {"day\0tenant", packed line}

local lines = {}
for _, field in ipairs(call('ZRANGEBYSCORE', K[LEDGER_DAYS], A[2], A[3])) do
  if #lines >= A[4] then break end
  if A[1] == '' or Q.split(field)[2] == A[1] then lines[#lines + 1] = {field, call('HGET', K[LEDGER], field)} end
end
return lines
