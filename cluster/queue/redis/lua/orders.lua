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

-- Whether relief makes all batch work give way, its reserved share included.
function Q.batch_yields()
  local relief = Q.orders()[2]
  return relief == 'preempt_batch' or relief == 'shed'
end
