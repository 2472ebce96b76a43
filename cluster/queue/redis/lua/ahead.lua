-- Shared: what `turn` reads for all of its calls at once. Calls of many tenants on many replicas share no record, and a
-- command for each record costs more than what it does.

-- Read records with one command. `use` is called with each name and its record, or false.
function Q.read_many(key, names, use)
  if #names == 0 then return end
  for i, packed in ipairs(call('HMGET', key, unpack(names))) do use(names[i], packed) end
end

-- Read the entries of these calls; and for those that end an attempt, its replica's load and its tenant's line of the
-- ledger. Each call finds them as if it had read them.
function Q.read_ahead(list)
  Q.open_pool()
  local ids, ending = {}, {}
  for _, step in ipairs(list) do
    local id = step[2][2]
    -- That of `cancel` is a request or a key, and `collect` has none.
    if type(id) == 'string' and step[1] ~= 'cancel' then
      ids[#ids + 1] = id
      ending[id] = step[1] == 'release' and step[2][1] or nil
    end
  end
  local replicas, fields, old, seen = {}, {}, {}, {}
  local keeps, day = tonumber(ARGV[17]) > 0, math.floor(Q.now / 86400000)
  Q.read_many(K[ENTRIES], ids, function(id, packed)
    if not packed then
      Q.absent[id] = true
      return
    end
    local e = cmsgpack.unpack(packed)
    Q.entries[id] = e
    if e[STATE] ~= 'f' then return end
    if not seen[e[REPLICA]] then
      seen[e[REPLICA]] = true
      replicas[#replicas + 1] = e[REPLICA]
    end
    local field = Q.ledger_field(day, e[TENANT])
    if keeps and ending[id] == e[OWNER] and not old[field] then
      fields[#fields + 1] = field
      old[field] = Q.ledger_field(day - HOUR_DAYS, e[TENANT])
    end
  end)
  Q.read_many(K[LOAD], replicas, function(replica, packed)
    if not packed then return end
    local l = cmsgpack.unpack(packed)
    Q.loads[replica], Q.placed[replica] = l, Q.place_of(l)
  end)
  local begun = {}
  Q.read_many(K[LEDGER], fields, function(field, packed)
    Q.ledger_ahead[field] = packed
    if not packed then begun[#begun + 1] = old[field] end
  end)
  Q.read_many(K[LEDGER], begun, function(field, packed) Q.ledger_ahead[field] = packed end)
end
