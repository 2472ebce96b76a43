-- Look whether a job is whole. Put it back into the shared keys if Redis lost one of these. End a job that lacks a part,
-- and forget what is left of a job without a record.
--
-- Keys: common.lua. ARGV: 3 ttl ms, 4 upload ms, 5 lease ms, 6 member of an index that names the job, or ""
-- Reply: 0 whole, or put back; 1 ended; 2 forgotten

pass_when_full()
local state = get('state')
if state == '' then
  if ARGV[6] ~= '' then
    call('ZREM', INDEX, ARGV[6])
    call('ZREM', FILES, ARGV[6])
  end
  drop_rest()
  return 2
end
if end_if_torn(tonumber(ARGV[3])) then return 1 end
if state == 'uploading' then
  local kept = get('kept')
  call('ZADD', DUE, 'NX', kept == '' and NOW + tonumber(ARGV[4]) or number('due'), ID)
  if kept == 'file' then call('ZADD', FILES, 'NX', 0, index_member(get('tenant'))) end
  return 0
end
local tenant, key = get('tenant'), get('key')
call('ZADD', DUE, 'NX', number('due'), ID)
call('ZADD', INDEX, 'NX', 0, index_member(tenant))
if key ~= '' then call('HSETNX', NAMES, tenant .. '\0' .. key, ID) end
if is_open(state) then
  -- A feeder that lives renews its lease before this.
  local from = get('holder') == '' and number('created') or NOW + tonumber(ARGV[5])
  call('ZADD', OPEN, 'NX', from, ID)
end
return 0
