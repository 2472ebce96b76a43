-- Read a page of what is on record for a router, in the order of its members. Change nothing.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, last member of the page before ("" for the first page), most entries
-- Reply: {last member if there may be more, else "", flat list of (letter, request id, attempt or "")}; letters as in
--        names.lua

local after, limit = A[2], A[3]
local from = after == '' and '[' .. A[1] .. '\0' or '(' .. after
local members = call('ZRANGEBYLEX', K[OWNERS], from, '(' .. A[1] .. '\1', 'LIMIT', 0, limit)
local found = {}
for _, member in ipairs(members) do
  local parts = Q.split(member)
  local letter, id, attempt = parts[2], parts[3], ''
  if letter == 'w' or letter == 'p' then
    id = parts[4]
  elseif letter == 'g' then
    attempt = parts[4]
  elseif letter == 'r' then
    local e = Q.get(id)
    attempt = e and e[ATTEMPT] or ''
  end
  found[#found + 1] = letter
  found[#found + 1] = id
  found[#found + 1] = attempt
end
return {#members == limit and members[limit] or '', found}
