-- Return changes, newest first.
--
-- ARGV: 1 kind or ""; 2 name or ""; 3 most changes; 4 number of the line before which they are, or ""
-- Reply: number of the oldest line that was looked at, or 0 where none older is kept; then for each change its line and
--   the digest of the line before, or "" where that one is not kept
local PAGE, MOST = 256, 16384 -- lines at a time, and lines that are looked at
local kind, name, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local last = tonumber(call('HGET', STATE, 'lines')) or 0
local length = call('LLEN', HISTORY)
-- Place of the newest line that is wanted.
local at = length - 1
if ARGV[4] ~= '' then at = math.min(at, length - 1 - (last - tonumber(ARGV[4]) + 1)) end
local stop, reply, oldest = math.max(at - MOST, -1), {}, 0

while at > stop and #reply < 2 * limit do
  local first = math.max(at - PAGE + 1, 0)
  local before = first > 0 and string.sub(call('LRANGE', HISTORY, first - 1, first - 1)[1], 1, 40) or ''
  local lines = call('LRANGE', HISTORY, first, at)
  for i = #lines, 1, -1 do
    if #reply >= 2 * limit then break end
    oldest = first + i - 1
    local id = part(lines[i], 5)
    local here, called = string.match(id, '^([^%z]*)%z(.*)$')
    if (kind == '' or here == kind) and (name == '' or called == name) then
      reply[#reply + 1] = lines[i]
      reply[#reply + 1] = i > 1 and string.sub(lines[i - 1], 1, 40) or before
    end
  end
  at = first - 1
end
table.insert(reply, 1, oldest > 0 and last - (length - 1 - oldest) or 0)
return reply
