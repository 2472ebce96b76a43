-- Shared: quotas of tenants. A quota is a bucket that holds one minute's worth. Use drains with pool time, so the use
-- is stored, and a tenant that is not stored has used nothing.

-- Return the use at time `as_of` under a rate of `old` per minute, brought to now and to the rate `new`. If the new
-- rate is lower the use falls in proportion, so it still drains within the same time. Otherwise a tenant would be
-- locked out for as many minutes as its rate was cut by.
function Q.brought(used, as_of, old, new)
  if old == 0 then old = new end
  used = math.max(0, used - (Q.now - as_of) / 60000 * old)
  return new < old and used * new / old or used
end

-- Return a tenant's use, brought to now and to these rates: {tokens, as of (ms), requests, as of (ms), tokens per
-- minute, requests per minute}. A rate of 0 leaves its part as it was.
function Q.used_of(tenant, tokens_per_minute, requests_per_minute)
  local packed = call('HGET', K[QUOTAS], tenant)
  if not packed then return {0, Q.now, 0, Q.now, tokens_per_minute, requests_per_minute} end
  local used = cmsgpack.unpack(packed)
  -- The last release stored no rates.
  used[5], used[6] = used[5] or 0, used[6] or 0
  if tokens_per_minute > 0 then
    used[1], used[2], used[5] = Q.brought(used[1], used[2], used[5], tokens_per_minute), Q.now, tokens_per_minute
  end
  if requests_per_minute > 0 then
    used[3], used[4], used[6] = Q.brought(used[3], used[4], used[6], requests_per_minute), Q.now, requests_per_minute
  end
  return used
end

-- Store a tenant's use. It is forgotten an hour after the last request, or when a debt of tokens is drained.
function Q.put_used(tenant, used, tokens_per_minute)
  call('HSET', K[QUOTAS], tenant, cmsgpack.pack(used))
  local drained = 0
  if tokens_per_minute > 0 then drained = math.ceil(used[1] / tokens_per_minute * 60000) end
  call('ZADD', K[TENANT_DUE], Q.now + math.max(3600000, drained), tenant)
end

-- Return an output's bucket in its tenant's histogram. The first bucket counts empty outputs, the next ones [1, 2)
-- [2, 3) [3, 4) [4, 6) [6, 8) ... tokens, two per doubling. The counts are halved when they reach 256, so the histogram
-- follows changes.
function Q.bucket_of(tokens)
  local bucket, edge, step = 1, 1, 1
  while tokens >= edge and bucket < 32 do
    bucket = bucket + 1
    if bucket > 4 and bucket % 2 == 1 then step = step * 2 end
    edge = edge + step
  end
  return bucket
end

-- Return the first count of tokens above a bucket.
function Q.edge_of(bucket)
  local edge, step = 1, 1
  for i = 2, bucket do
    if i > 4 and i % 2 == 1 then step = step * 2 end
    edge = edge + step
  end
  return edge
end

function Q.note_output(tenant, tokens)
  local packed = call('HGET', K[OUTPUTS], tenant)
  local counts = packed and cmsgpack.unpack(packed)
  if not counts then
    counts = {}
    for i = 1, 32 do counts[i] = 0 end
  end
  local bucket, total = Q.bucket_of(tokens), 0
  counts[bucket] = counts[bucket] + 1
  for i = 1, 32 do total = total + counts[i] end
  if total >= 256 then
    for i = 1, 32 do counts[i] = math.floor(counts[i] / 2) end
  end
  call('HSET', K[OUTPUTS], tenant, cmsgpack.pack(counts))
end

-- Return the 95th percentile of a tenant's outputs in tokens, as the edge of its bucket, or `default` with fewer than
-- 20 outputs.
function Q.likely_output(tenant, default)
  local packed = call('HGET', K[OUTPUTS], tenant)
  if not packed then return default end
  local counts, total, seen = cmsgpack.unpack(packed), 0, 0
  for i = 1, 32 do total = total + counts[i] end
  if total < 20 then return default end
  for i = 1, 32 do
    seen = seen + counts[i]
    if seen >= 0.95 * total then return Q.edge_of(i) end
  end
end

-- Return the tokens that an entry takes of its tenant's quota.
function Q.need_of(e, max_tokens, quota)
  if quota[1] > 0 and quota[4] ~= 1 then max_tokens = math.min(max_tokens, Q.likely_output(e[TENANT], e[EXPECTED])) end
  return e[PROMPT] + max_tokens
end

-- Take an entry's part of its tenant's quota. If the quota does not allow it, return {which, retry after (ms, -1 is
-- never), limit}; which: 1 tokens, 2 requests, 3 concurrency.
-- `quota`: {tokens per minute, requests per minute, concurrency, strict}. `choices`: choices of its request, whose
-- parts are taken with it, or 0 if an earlier entry took them. Concurrency is counted choice by choice.
function Q.take_quota(e, max_tokens, quota, choices)
  local tenant, tokens, requests, open = e[TENANT], quota[1], quota[2], quota[3]
  if open > 0 then
    if choices > open then return {3, -1, open} end
    local would_be = (tonumber(call('HGET', K[OPEN_COUNTS], tenant)) or 0) + math.max(1, choices)
    if would_be > open then return {3, 1000, open} end
  end
  if tokens > 0 or requests > 0 then
    local used = Q.used_of(tenant, tokens, requests)
    local strict = quota[4] == 1
    if requests > 0 and choices > 0 then
      if choices > requests then return {2, -1, requests} end
      local over = used[3] + choices - requests
      if over > 0 then return {2, math.ceil(over / requests * 60000), requests} end
    end
    if tokens > 0 then
      local need = Q.need_of(e, max_tokens, quota)
      local asked = need * choices
      -- A request larger than the bucket needs a full bucket and goes into debt. A strict quota allows no debt.
      if not strict then asked = math.min(asked, tokens) end
      if asked > tokens then return {1, -1, tokens} end
      local over = used[1] + asked - tokens
      if choices > 0 and over > 0 then return {1, math.ceil(over / tokens * 60000), tokens} end
      used[1] = used[1] + need * choices
      e[TOKEN_RATE], e[strict and STRICT_TOKENS or HELD_TOKENS] = tokens, need
    end
    if requests > 0 then used[3] = used[3] + choices end
    Q.put_used(tenant, used, tokens)
  end
  if open > 0 then
    call('HINCRBY', K[OPEN_COUNTS], tenant, 1)
    e[COUNTED_OPEN] = 1
  end
  return nil
end

-- Give back an entry's part of the quota: the queue refuses it, although its request's quota was taken before.
function Q.return_part(e, max_tokens, quota)
  local tokens, requests = quota[1], quota[2]
  if tokens == 0 and requests == 0 then return end
  local used = Q.used_of(e[TENANT], tokens, requests)
  used[1], used[3] = math.max(0, used[1] - Q.need_of(e, max_tokens, quota)), math.max(0, used[3] - 1)
  Q.put_used(e[TENANT], used, tokens)
end

-- Give back the request that an entry took of its tenant's rate: its router refuses it after all. Not what may have
-- drained since, as in `leave_tenant`.
function Q.return_request(e)
  local used = Q.used_of(e[TENANT], 0, 0)
  local rate = used[6]
  if e[NUMBER] > 0 or rate == 0 then return end
  local left = math.max(0, 1 - (Q.now - e[SUBMITTED]) / 60000 * rate)
  used[3], used[4] = math.max(0, Q.brought(used[3], used[4], rate, rate) - left), Q.now
  Q.put_used(e[TENANT], used, used[5])
end

-- Replace the tokens that an entry holds of a quota by those that it used.
function Q.settle_quota(e, tokens)
  if e[HELD_TOKENS] == 0 then return end
  local used = Q.used_of(e[TENANT], 0, 0)
  local rate = used[5] > 0 and used[5] or e[TOKEN_RATE]
  used[1], used[2], used[5] = Q.brought(used[1], used[2], rate, rate), Q.now, rate
  -- The tokens that it holds shrank with the rate.
  used[1] = math.max(0, used[1] + (tokens - e[HELD_TOKENS]) * math.min(1, rate / e[TOKEN_RATE]))
  e[HELD_TOKENS] = 0
  Q.put_used(e[TENANT], used, rate)
end

-- Give back what a removed entry holds of its tenant's quota. An entry that was never granted gives back its tokens;
-- what a dead router ran stays charged.
function Q.leave_tenant(e)
  if e[NUMBER] == 0 then
    if (e[STRICT_TOKENS] or 0) > 0 then
      -- Not what may have drained since: these tokens may have been all that was in the bucket, and what drained let
      -- others in.
      e[HELD_TOKENS] = math.max(0, e[STRICT_TOKENS] - (Q.now - e[SUBMITTED]) / 60000 * e[TOKEN_RATE])
    end
    Q.settle_quota(e, 0)
  end
  if e[COUNTED_OPEN] == 1 and call('HINCRBY', K[OPEN_COUNTS], e[TENANT], -1) <= 0 then
    call('HDEL', K[OPEN_COUNTS], e[TENANT])
  end
end

function Q.tidy_tenants()
  for _, tenant in ipairs(call('ZRANGEBYSCORE', K[TENANT_DUE], '-inf', Q.now, 'LIMIT', 0, KEYS_PER_CALL)) do
    call('HDEL', K[QUOTAS], tenant)
    call('HDEL', K[OUTPUTS], tenant)
    call('HDEL', K[BUDGETS], tenant)
    call('ZREM', K[TENANT_DUE], tenant)
  end
end
