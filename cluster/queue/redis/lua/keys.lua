-- Shared: clients' idempotency keys. A key belongs to one request, from its submit until its result is forgotten.

-- Return the request of an entry, to which keys belong: that of "id/2" is "id".
function Q.request_of(id) return string.match(id, '^([^/]+)/%d+$') or id end

-- Return the two digests of "exact/plain": of the bytes received, and with defaults left out. A single one is both.
function Q.digests(digest)
  local exact, plain = string.match(digest, '^([^/]*)/?(.*)$')
  return exact, plain ~= '' and plain or exact
end

-- Return the answer of `submit` for a key that is known; nil if it is unknown, or if it belongs to this request and has
-- no result. A call that returns to its own request gets the stored result.
function Q.find_key(tenant, key, id, digest)
  local field = tenant .. '\0' .. key
  local packed = call('HGET', K[CLIENT_KEYS], field)
  if not packed then return nil end
  local record = cmsgpack.unpack(packed)
  local exact, plain = Q.digests(digest)
  -- Records of earlier versions have the exact one only.
  if record[2] ~= exact and (record[3] or record[2]) ~= plain then return {-4, record[1]} end
  local result = call('HGET', K[RESULTS], field)
  if record[1] == Q.request_of(id) and not result then return nil end
  return {2, record[1], result, Q.is_live(record[1])}
end

-- Return 1 while a choice of the request waits or runs, else 0.
function Q.is_live(request)
  local names = {request}
  for i = 1, CHOICES do names[i + 1] = request .. '/' .. (i - 1) end
  for _, entry in ipairs(call('HMGET', K[ENTRIES], unpack(names))) do
    if entry then return 1 end
  end
  return 0
end

function Q.open_key(id, e, digest)
  local field, request = e[TENANT] .. '\0' .. e[CLIENT_KEY], Q.request_of(id)
  call('HSETNX', K[CLIENT_KEYS], field, cmsgpack.pack({request, Q.digests(digest)}))
  if Q.owns_key(field, request) then call('ZREM', K[KEY_DUE], field) end
end

-- Note that the entry of a key is removed. An entry that `ended` keeps its key for the result. Other entries free it,
-- but not while other choices of the request go on, which carry no key. Their router frees it at the end of the last
-- one. If that router dies first, `end_key` frees it.
function Q.close_key(id, e, ended)
  local field = e[TENANT] .. '\0' .. e[CLIENT_KEY]
  if not Q.owns_key(field, Q.request_of(id)) then return end
  if ended then
    call('ZADD', K[KEY_DUE], Q.now + tonumber(ARGV[15]), field)
  elseif Q.is_live(Q.request_of(id)) == 1 then
    call('ZADD', K[KEY_DUE], Q.now + Q.lease, field)
  else
    Q.drop_key(field)
  end
end

function Q.owns_key(field, request)
  local packed = call('HGET', K[CLIENT_KEYS], field)
  return packed and cmsgpack.unpack(packed)[1] == request
end

function Q.drop_key(field)
  call('HDEL', K[CLIENT_KEYS], field)
  call('ZREM', K[KEY_DUE], field)
  Q.drop_result(field)
end

function Q.drop_result(field)
  local size = call('HSTRLEN', K[RESULTS], field)
  if size > 0 then
    call('HDEL', K[RESULTS], field)
    Q.set(P_RESULTS, math.max(0, P[P_RESULTS] - size)) -- the sum may be lost
  end
end

-- Return the request id of a key, without choice; false if the key is unknown.
function Q.id_of_key(tenant, key)
  local packed = call('HGET', K[CLIENT_KEYS], tenant .. '\0' .. key)
  return packed and cmsgpack.unpack(packed)[1]
end

-- Forget a key that is due, or has to make room, unless its request goes on.
function Q.end_key(field)
  -- A stored result means that the request is over.
  local packed = call('HEXISTS', K[RESULTS], field) == 0 and call('HGET', K[CLIENT_KEYS], field)
  if packed and Q.is_live(cmsgpack.unpack(packed)[1]) == 1 then
    -- Other choices go on after the first one: a result may still come.
    call('ZADD', K[KEY_DUE], Q.now + math.max(Q.lease, tonumber(ARGV[15])), field)
  else
    Q.drop_key(field)
  end
end

-- Forget the oldest results until the others are within their bound, at most CHUNK keys: after the bound was lowered
-- there may be very many. Routers' heartbeats go on with the rest.
function Q.make_room()
  if P[P_RESULTS] <= tonumber(ARGV[16]) then return end
  for _ = 1, math.min(CHUNK, call('ZCARD', K[KEY_DUE])) do
    Q.end_key(call('ZRANGE', K[KEY_DUE], 0, 0)[1])
    if P[P_RESULTS] <= tonumber(ARGV[16]) then return end
  end
end

function Q.tidy_keys()
  for _, field in ipairs(call('ZRANGEBYSCORE', K[KEY_DUE], '-inf', Q.now, 'LIMIT', 0, KEYS_PER_CALL)) do
    Q.end_key(field)
  end
end
