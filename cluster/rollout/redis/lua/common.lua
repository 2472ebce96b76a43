-- Shared by all scripts on roll-outs; load_scripts puts it in front of each.
--
-- KEYS: 1 HASH rollout: version, record
local ROLLOUT = KEYS[1]
local call = redis.call
