-- Shared: budgets of tenants. What is used of one is read from the ledger, so it is exact and as durable, and a release
-- costs nothing more.

-- Return the day of the month, from 1, of a day since 1970. The years are counted from 1 March of the year 0, so that
-- the leap day is the last of its year.
function Q.day_of_month(day)
  local z = day + 719468
  local in_era = z % 146097
  local year = math.floor((in_era - math.floor(in_era / 1460) + math.floor(in_era / 36524)
    - math.floor(in_era / 146096)) / 365)
  local in_year = in_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * in_year + 2) / 153)
  return in_year - math.floor((153 * month + 2) / 5) + 1
end

function Q.charged(packed) return packed and cmsgpack.unpack(packed)[6] or 0 end

-- Return a tenant's charges from `first` to the day before `today`. They change no more, so they are added up once.
function Q.charged_before(tenant, first, today)
  local packed = call('HGET', K[BUDGETS], tenant)
  local known = packed and cmsgpack.unpack(packed)
  if known and known[1] == today then return known[2] end
  local sum, fields = 0, {}
  for day = first, today - 1 do fields[#fields + 1] = string.format('%d', day) .. '\0' .. tenant end
  if #fields > 0 then
    for _, line in ipairs(call('HMGET', K[LEDGER], unpack(fields))) do sum = sum + Q.charged(line) end
  end
  call('HSET', K[BUDGETS], tenant, cmsgpack.pack({today, sum}))
  call('ZADD', K[TENANT_DUE], 'NX', Q.now + 3600000, tenant)
  return sum
end

-- Check a tenant's budgets. If one is used up, return {-2, which, ms until it renews, limit, used}; which: 4 per day, 5
-- per month. Otherwise remember the one of which most is used, for the answer. Numbers are text: a reply has no
-- fractions.
function Q.check_budgets(tenant, quota)
  local per_day, per_month = quota[5] or 0, quota[6] or 0
  if per_day == 0 and per_month == 0 then return end
  local today = math.floor(Q.now / 86400000)
  local line = Q.today(string.format('%d', today) .. '\0' .. tenant)
  local used_today = line and line[6] or 0
  local worst = -1
  local function check(which, limit, used, renewed)
    local use = {which, renewed * 86400000 - Q.now, string.format('%.17g', limit), string.format('%.17g', used)}
    if used >= limit then return {-2, unpack(use)} end
    if used / limit > worst then worst, Q.budget = used / limit, use end
  end
  if per_month > 0 then
    local first = today - Q.day_of_month(today) + 1
    local renewed = first + 31
    local used = used_today + Q.charged_before(tenant, first, today)
    local refused = check(5, per_month, used, renewed - Q.day_of_month(renewed) + 1)
    if refused then return refused end
  end
  if per_day > 0 then return check(4, per_day, used_today, today + 1) end
end
