-- Shared by all scripts on records; redis/scripts.py puts it in front of each.
--
-- KEYS, all of one hash slot; redis/keys.py has their lifetimes
--  1 HASH records  request id -> records of its calls
--  2 ZSET recent   "tenant\0id" -> ms of the first record
--  3 ZSET missed   the same, of those that missed their SLO
--  4 ZSET tenants  "tenant\0ms\0id" -> 0, so that a tenant's requests are in order of time
--  5 STRING bytes  bytes of all records
local RECORDS, RECENT, MISSED, TENANTS, BYTES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local call = redis.call

local function text(n) return string.format('%.0f', n) end

local function split(member) return string.match(member, '^(.*)%z([^%z]*)$') end

local function in_order(tenant, ms, id) return string.format('%s\0%015.0f\0%s', tenant, ms, id) end
