-- Shared: the autoscaler's orders.

-- Return {operating point or false, relief}. Relief ends by itself; otherwise that of a dead leader would stay.
function Q.orders()
  if not Q.told then
    local found = call('HMGET', K[CONTROL], 'point', 'relief', 'relief_until')
    local holds = found[2] and Q.now < tonumber(found[3])
    Q.told = {found[1], holds and found[2] or 'none'}
  end
  return Q.told
end

-- Return what a replica has to know: 1 if it is to stand by, 0 if it is to take work, -1 while no order is in force; and
-- the most cells that the pool ever had. Orders end by themselves, too: a pool without a leader must not sleep.
function Q.told_replica(replica)
  local found = call('HMGET', K[CONTROL], 'standby', 'standby_until', 'cells_most')
  local most = tonumber(found[3] or 1)
  if not found[1] or Q.now >= tonumber(found[2]) then return -1, most end
  return string.find(found[1], '\n' .. replica .. '\n', 1, true) and 1 or 0, most
end

-- Whether relief makes all batch work give way, its reserved share included.
function Q.batch_yields()
  local relief = Q.orders()[2]
  return relief == 'preempt_batch' or relief == 'shed'
end
