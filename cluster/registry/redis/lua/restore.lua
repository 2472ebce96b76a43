-- Give back entries that the store may have lost; newer ones in the store stay.
--
-- ARGV: 1 time in ms, or "" for the server's; 2 life and 3 version that the process knows; then for each entry:
--   "kind\0name", packed entry
-- Reply: number of entries that came back
local known_life, known = ARGV[2], tonumber(ARGV[3])
local life, version = state()
if life == '' then
  life = known_life
  call('HSET', STATE, 'life', life)
end
local same, back = life == known_life, 0
for i = 4, #ARGV, 2 do
  local id, packed = ARGV[i], ARGV[i + 1]
  local at, rest = string.match(packed, '^(%d+):(.*)$')
  local here = found(id)
  local deleted = string.match(rest, '^%d+:(.)') == '-'
  if same and tonumber(at) > here then
    store(id, tonumber(at), packed, deleted)
    back = back + 1
  elseif not same and here == 0 and not deleted then
    -- Another registry began meanwhile. What it has is newer than all of this.
    version = version + 1
    store(id, version, text(version) .. ':' .. rest, false)
    back = back + 1
  end
end
if same and known > version then version = known end
call('HSET', STATE, 'version', text(version))
return back
