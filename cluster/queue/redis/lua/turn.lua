-- Make several calls of one router, one after the other. The arguments, the pool and what `read_ahead` knows of are read
-- once, and the pool, the loads and the ledger are stored once. A call that fails leaves the others alone.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: list of {name of a script, its own A}
-- Reply: {list of their replies, flat list of (number of a call that failed, its error)}

local steps = {submit = Q.step_submit, release = Q.step_release, refuse = Q.step_refuse, requeue = Q.step_requeue,
  withdraw = Q.step_withdraw, cancel = Q.step_cancel, collect = Q.step_collect}
local list, replies, errors, full = A, {}, {}, nil

-- Forget what this call has read and decided.
local function begin()
  Q.caused, Q.budget, Q.may_fall = nil, nil, nil
  Q.todo, Q.todo_set, Q.beyond, Q.walls, Q.granted, Q.fell_behind = {}, {}, {}, 0, 0, 0
end

-- A full Redis refuses `submit`, also behind a call that it lets pass.
for _, step in ipairs(list) do
  if step[1] == 'submit' then
    local ok, why = pcall(call, 'ZADD', K[FREE], 'XX', '0', '')
    if not ok then full = why end
    break
  end
end

Q.goes_on, Q.lines, Q.new_lines = true, {}, {}
pcall(Q.read_ahead, list)
for i, step in ipairs(list) do
  A = step[2]
  begin()
  local ok, reply = not (full and step[1] == 'submit'), full
  if ok then ok, reply = pcall(steps[step[1]]) end
  if ok then
    replies[i] = reply or false
  else
    replies[i] = false
    errors[#errors + 1] = i
    errors[#errors + 1] = type(reply) == 'table' and reply.err or tostring(reply)
    -- It may have changed records that it did not store.
    if next(Q.unstored) then Q.store_loads() end
    Q.entries, Q.loads, Q.links, Q.router_alive, Q.replica_alive, Q.placed = {}, {}, {}, {}, {}, {}
    Q.absent = {}
    Q.forget_counts()
  end
end
local lines, emptied = {}, {}
for field, line in pairs(Q.lines) do
  lines[#lines + 1] = field
  lines[#lines + 1] = cmsgpack.pack(line)
end
Q.for_all('HSET', K[LEDGER], lines)
Q.for_all('ZADD', K[LEDGER_DAYS], Q.new_lines)
for field in pairs(Q.emptied) do emptied[#emptied + 1] = field end
Q.for_all('HDEL', K[OUTSTANDING], emptied)
Q.goes_on = false
Q.close_pool()
return {replies, errors}
