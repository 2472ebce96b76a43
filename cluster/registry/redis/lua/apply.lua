-- Make edits, all or none.
--
-- ARGV: 1 time in ms, or "" for the server's; 2 life and 3 version that the process knows; 4 life for a registry without
--   one; 5 tenant and 6 credential of the author; 7 most lines of the history; then for each edit: "kind\0name",
--   expected version or "", "+value" or "-"
-- Reply: "done", life, version; "lost" where the store knows less than the process; or "conflict", number of the edit
--   from 0, version found
local now, known_life, known = clock(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local life, version = state()
if known_life ~= '' and (life ~= known_life or version < known) then return {'lost'} end
for i = 8, #ARGV, 3 do
  local at, value = found(ARGV[i])
  local expected = ARGV[i + 1]
  if expected ~= '' and tonumber(expected) ~= (value and at or 0) then
    return {'conflict', (i - 8) / 3, value and at or 0}
  end
end

if life == '' then
  life = ARGV[4]
  call('HSET', STATE, 'life', life)
end
local lines = tonumber(call('HGET', STATE, 'lines')) or 0
local digest = call('HGET', STATE, 'digest') or ''
for i = 8, #ARGV, 3 do
  local id, value = ARGV[i], ARGV[i + 2]
  local _, before = found(id)
  -- An edit that changes nothing leaves nothing: it would push others out of the history.
  if value ~= (before and '+' .. before or '-') then
    version, lines = version + 1, lines + 1
    store(id, version, text(version) .. ':' .. text(now) .. ':' .. value, value == '-')
    local line = joined(
      text(lines), text(now), ARGV[5], ARGV[6], id, text(version), before and ('+' .. before) or '-', value)
    digest = redis.sha1hex(digest .. line)
    call('RPUSH', HISTORY, digest .. line)
  end
end
call('LTRIM', HISTORY, -tonumber(ARGV[7]), -1)
call('HSET', STATE, 'version', text(version), 'lines', text(lines), 'digest', digest)
return {'done', life, version}
