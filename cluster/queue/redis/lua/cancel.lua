-- Stop a request with all its choices, wherever they are.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router, tenant, request id or client key, by key (0 or 1)
-- Reply: request id without choice, or the id of the named choice; nil if the tenant has no such entry

Q.pass_when_full()
Q.open_pool()
local tenant, id = A[2], A[3]
if A[4] == 1 then id = Q.id_of_key(tenant, id) end
if not id then return false end
local found = false

local function stop(name)
  local e = Q.get(name)
  if not e or e[TENANT] ~= tenant then return end
  found = true
  if e[STATE] ~= 'f' and e[OWNER] == A[1] and e[NUMBER] == 0 then
    -- This includes an entry under an order of another router: the owner, who is the caller, ends it here.
    Q.withdraw(name, e)
    Q.forget(name, e)
  else
    -- Attempts of it may have run, and only its owner knows what they used.
    Q.order(name, e, 'c')
  end
end

if call('HEXISTS', K[ENTRIES], id) == 1 then
  stop(id)
else
  local names = {}
  for i = 1, CHOICES do names[i] = id .. '/' .. (i - 1) end
  local packed = call('HMGET', K[ENTRIES], unpack(names))
  -- The first choice comes last: it carries the client key, which is freed only if no other choice is left.
  for i = CHOICES, 1, -1 do if packed[i] then stop(names[i]) end end
end
if not found then return false end
Q.want_free(4)
Q.run_fills()
Q.close_pool()
return id
