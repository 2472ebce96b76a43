-- Return what has changed since a position, and note that a watcher has looked.
--
-- ARGV: 1 time in ms, or "" for the server's; 2 watcher; 3 its report; 4 life and 5 version that it knows; 6 version to
--   go on from, or ""; 7 most entries
-- Reply: life, version, 1 if the entries begin at the first one else 0, 1 if more are to come else 0, then for each
--   entry: "kind\0name", packed entry
local KEPT_MS = 60000 -- after that long without a look a watcher is forgotten
local AHEAD_MS = 1000 -- a look that is further in the future was before the clock was set back

local now, known_life, known, after, most = clock(ARGV[1]), ARGV[4], tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local life, version = state()
call('HSET', WATCHERS, ARGV[2], text(now) .. ':' .. text(known) .. ':' .. ARGV[3])
-- One at a time: each watcher that looks removes at most one that has gone. One with a look in the future makes all
-- others seem to be gone. If it lives it comes back with its next look.
local other = call('HRANDFIELD', WATCHERS)
local age = other and now - tonumber(string.match(call('HGET', WATCHERS, other), '^%d+')) or 0
if age > KEPT_MS or age < -AHEAD_MS then call('HDEL', WATCHERS, other) end

local floor = tonumber(call('HGET', STATE, 'floor')) or 0
local whole = known_life ~= life or known < floor or known > version
local from = whole and 0 or known
if after ~= '' then from = tonumber(after) end
if from >= version then return {life, version, whole and 1 or 0, 0} end
local ids = call('ZRANGEBYSCORE', VERSIONS, '(' .. text(from), '+inf', 'LIMIT', 0, most + 1)
local reply = {life, version, whole and 1 or 0, #ids > most and 1 or 0}
for i = 1, math.min(#ids, most) do
  reply[#reply + 1] = ids[i]
  reply[#reply + 1] = call('HGET', ENTRIES, ids[i])
end
return reply
