-- Sorted sets. `m` and `s` are members and scores in order; `score` has the score of each member.
local R = ...
local db, str, float, text = R.db, R.str, R.float, R.text
local floor, sub, byte = math.floor, string.sub, string.byte
local select, type, new_list = select, type, R.new_list
local C = R.commands

local function zset_of(key)
  local set = db[key]
  if set == nil or set.kind == 'zset' then return set end
  return R.wrong_type()
end

local function open_zset(key)
  local set = zset_of(key)
  if set == nil then
    set = {kind = 'zset', m = {}, s = {}, score = {}, n = 0}
    db[key] = set
  end
  return set
end

-- Return the first place whose score and member are not below these.
local function place_of(set, score, member)
  local s, m, low, high = set.s, set.m, 1, set.n + 1
  -- Most arrivals go to the end.
  if high > 1 then
    local last = s[high - 1]
    if last < score or (last == score and m[high - 1] < member) then return high end
  end
  while low < high do
    local middle = floor((low + high) / 2)
    local here = s[middle]
    if here < score or (here == score and m[middle] < member) then low = middle + 1 else high = middle end
  end
  return low
end

local function take_out(set, member, score)
  local m, s, n = set.m, set.s, set.n
  -- Loops, because table.remove looks for the list's end each time.
  for i = place_of(set, score, member), n - 1 do m[i], s[i] = m[i + 1], s[i + 1] end
  m[n], s[n], set.score[member] = nil, nil, nil
  set.n = n - 1
end

local function put_in(set, member, score)
  local m, s, n = set.m, set.s, set.n + 1
  local at = place_of(set, score, member)
  for i = n, at + 1, -1 do m[i], s[i] = m[i - 1], s[i - 1] end
  m[at], s[at], set.score[member] = member, score, score
  set.n = n
end

local function put(set, member, score)
  local old = set.score[member]
  if old == score then return 0 end
  if old ~= nil then take_out(set, member, old) end
  put_in(set, member, score)
  return old == nil and 1 or 0
end

local function need_float(value) return float(value) or R.fail('ERR value is not a valid float') end

function C.ZADD(key, first, ...)
  if select('#', ...) == 1 and first ~= 'NX' and first ~= 'XX' then
    local score, member = need_float(first), str((...))
    return put(open_zset(key), member, score)
  end
  local given, only_new, only_known = {first, ...}, first == 'NX', first == 'XX'
  if only_new or only_known then table.remove(given, 1) end
  if only_known and given[1] == 'INCR' then
    if #given == 1 or #given % 2 == 0 then R.fail('ERR syntax error') end
    if #given > 3 then R.fail('ERR INCR option supports a single increment-element pair') end
    local by, member = need_float(given[2]), str(given[3])
    local set = zset_of(key)
    if not set or set.score[member] == nil then return nil end
    local score = set.score[member] + by
    if score ~= score then R.fail('ERR resulting score is not a number (NaN)') end
    put(set, member, score)
    return text(score)
  end
  if #given == 0 or #given % 2 == 1 then R.fail('ERR syntax error') end
  for i = 1, #given, 2 do
    given[i], given[i + 1] = need_float(given[i]), str(given[i + 1])
  end
  local added, set = 0, zset_of(key)
  if only_known and not set then return 0 end
  set = set or open_zset(key)
  for i = 1, #given, 2 do
    local known = set.score[given[i + 1]] ~= nil
    if known and not only_new or not known and not only_known then added = added + put(set, given[i + 1], given[i]) end
  end
  return added
end

function C.ZREM(key, ...)
  local set, gone = zset_of(key), 0
  if not set then return 0 end
  for i = 1, select('#', ...) do
    local member = str((select(i, ...)))
    local score = set.score[member]
    if score ~= nil then
      take_out(set, member, score)
      gone = gone + 1
    end
  end
  if set.n == 0 then db[key] = nil end
  return gone
end

function C.ZSCORE(key, member)
  local set = zset_of(key)
  local score = set and set.score[str(member)]
  if score == nil then return false end
  return text(score)
end

function C.ZCARD(key)
  local set = zset_of(key)
  return set and set.n or 0
end

function C.ZRANK(key, member)
  local set = zset_of(key)
  member = str(member)
  local score = set and set.score[member]
  if score == nil then return false end
  return place_of(set, score, member) - 1
end

function C.ZRANDMEMBER(key)
  local set = zset_of(key)
  if not set then return false end
  return set.m[R.random(set.n)]
end

-- Return members from one place to another, at most `count` of them after the first `offset`; backwards if `step` is
-- -1. A negative `count` is no limit.
local function members(set, from, to, offset, count, step)
  local m, first, last = set.m, from, to
  if step == -1 then first, last = to, from end
  if offset < 0 then return {} end
  first = first + step * offset
  if count >= 0 then
    local bound = first + step * (count - 1)
    if step == 1 and bound < last or step == -1 and bound > last then last = bound end
  end
  local n = (last - first) * step + 1
  if n <= 0 then return {} end
  local out = new_list(n)
  for i = 1, n do out[i] = m[first + (i - 1) * step] end
  return out
end

-- Read an option LIMIT.
local function limit_of(word, offset, count, ...)
  if word == nil then return 0, -1 end
  if count == nil or select('#', ...) > 0 or string.upper(str(word)) ~= 'LIMIT' then R.fail('ERR syntax error') end
  return R.need_integer(offset), R.need_integer(count)
end

function C.ZRANGE(key, from, to, option, ...)
  local scores = option ~= nil and string.upper(str(option)) == 'WITHSCORES'
  if (option ~= nil and not scores) or select('#', ...) > 0 then R.fail('ERR syntax error') end
  from, to = R.need_integer(from), R.need_integer(to)
  local set, out = zset_of(key), {}
  if not set then return out end
  from, to = R.positions(from, to, set.n)
  local m, s = set.m, set.s
  for i = from, to do
    out[#out + 1] = m[i]
    if scores then out[#out + 1] = text(s[i]) end
  end
  return out
end

-- Return the first place with a score that is at least `bound`, or above it if `open`.
local function place_of_score(set, bound, open)
  local s, low, high = set.s, 1, set.n + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local here = s[middle]
    if here < bound or (open and here == bound) then low = middle + 1 else high = middle end
  end
  return low
end

local function score_range(key, least, most)
  local low, low_open = R.score_bound(least)
  local high, high_open = R.score_bound(most)
  if not low or not high then R.fail('ERR min or max is not a float') end
  local set = zset_of(key)
  if not set then return nil, 1, 0 end
  local from = place_of_score(set, low, low_open)
  if from > set.n then return set, from, set.n end
  return set, from, place_of_score(set, high, not high_open) - 1
end

function C.ZRANGEBYSCORE(key, least, most, ...)
  local offset, count = limit_of(...)
  local set, from, to = score_range(key, least, most)
  if not set then return {} end
  return members(set, from, to, offset, count, 1)
end

function C.ZCOUNT(key, least, most)
  local _, from, to = score_range(key, least, most)
  return to < from and 0 or to - from + 1
end

function C.ZREMRANGEBYSCORE(key, least, most)
  local set, from, to = score_range(key, least, most)
  if to < from then return 0 end
  local m, s, n, gone = set.m, set.s, set.n, to - from + 1
  for i = from, to do set.score[m[i]] = nil end
  for i = from, n do m[i], s[i] = m[i + gone], s[i + gone] end
  set.n = n - gone
  if set.n == 0 then db[key] = nil end
  return gone
end

-- Return the first place whose member is not below `member`; with `after`, the first one above it.
local function place_of_member(set, member, after)
  local m, low, high = set.m, 1, set.n + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local here = m[middle]
    if here < member or (after and here == member) then low = middle + 1 else high = middle end
  end
  return low
end

-- Read a bound of a range by member: the member, whether the range begins after it, -1 or 1 for the ends of the set.
local function member_bound(value)
  value = str(value)
  local mark = type(value) == 'string' and byte(value)
  if mark == 91 then return sub(value, 2), false end
  if mark == 40 then return sub(value, 2), true end
  if value == '-' then return nil, false, -1 end
  if value == '+' then return nil, false, 1 end
  return R.fail('ERR min or max not valid string range item')
end

local function member_range(key, least, most)
  local low, low_open, low_end = member_bound(least)
  local high, high_open, high_end = member_bound(most)
  local set = zset_of(key)
  if not set then return nil, 1, 0 end
  local from, to = 1, set.n
  if low then from = place_of_member(set, low, low_open) elseif low_end == 1 then from = set.n + 1 end
  if high then to = place_of_member(set, high, not high_open) - 1 elseif high_end == -1 then to = 0 end
  return set, from, to
end

function C.ZRANGEBYLEX(key, least, most, ...)
  local offset, count = limit_of(...)
  local set, from, to = member_range(key, least, most)
  if not set then return {} end
  return members(set, from, to, offset, count, 1)
end

function C.ZREVRANGEBYLEX(key, most, least, ...)
  local offset, count = limit_of(...)
  local set, from, to = member_range(key, least, most)
  if not set then return {} end
  return members(set, from, to, offset, count, -1)
end

function C.ZLEXCOUNT(key, least, most)
  local _, from, to = member_range(key, least, most)
  return to < from and 0 or to - from + 1
end
