-- Names of numbers: positions in KEYS, positions of fields in the packed arrays, and bounds. Lua 5.1 has no constants,
-- and every captured local costs time at every call (a walk along the open upvalues). So redis/scripts.py writes the
-- numbers into the scripts.
--
-- Keys. All belong to one pool and one hash slot; redis/keys.py has their lifetimes.
POOL = 1 -- STRING packed array, fields P_* below
ENTRIES = 2 -- HASH request id -> packed array, fields of an entry below
LINE = 3 -- ZSET score 0, "class\0tenant\0place\0id" of every waiting entry
ACTIVE = 4 -- + class: ZSET tenants in the line, by weighted service
IDLE = 7 -- + class: ZSET tenants out of the line whose service is above the floor
OWNERS = 10 -- ZSET score 0, what a router owns, "router\0letter\0...", by letter:
--             w\0place\0id waiting, p\0place\0id parked, r\0id running;
--             mail: g\0id\0attempt\0replica grant; c\0id order to cancel, d\0id moved to another router,
--             e\0id expired, f\0id order to give way
SLOTS = 11 -- ZSET score 0, holders of the replicas' slots, "replica\0letter\0id\0attempt": g granted, r started
LOAD = 12 -- HASH replica -> packed array, fields of a load below
FREE = 13 -- ZSET replicas that may take one more sequence, by share of slots held
REGISTRY = 14 -- HASH replica -> packed {record, stats}
REPLICAS = 15 -- ZSET replica leases, by end (ms)
ROUTERS = 16 -- ZSET router leases, by end (ms)
PARTED = 17 -- ZSET routers without lease, by the time when their waiting entries are removed (ms)
LINKS = 18 -- ZSET score 0, "router\0replica": the router has a healthy link there
CLIENT_KEYS = 19 -- HASH "tenant\0client key" -> packed {request id without choice, its exact and its plain digest}
SKIPS = 20 -- HASH request id -> how often it was passed over; class\0tenant -> how often its late entries were
PREFS = 21 -- HASH replica -> entries in the line that prefer it
DEADLINES = 22 -- ZSET request ids in the line, by the last moment of a grant (ms)
BELLS = 23 -- HASH router -> 1 from a ring of its bell until it reads its mail
KEY_DUE = 24 -- ZSET "tenant\0client key" whose request is over, by the time when it is forgotten (ms)
RESULTS = 25 -- HASH "tenant\0client key" -> stored result
QUOTAS = 26 -- HASH tenant -> packed {tokens used, as of (ms), requests used, as of (ms), tokens per minute,
--             requests per minute}; the use drains with time
OUTPUTS = 27 -- HASH tenant -> packed histogram of output tokens, as in quota.lua
OPEN_COUNTS = 28 -- HASH tenant -> entries that count against its concurrency
TENANT_DUE = 29 -- ZSET tenants in QUOTAS or OUTPUTS, by the time when they are forgotten (ms)
LEDGER = 30 -- HASH "day\0tenant" -> packed {requests, prompt, output, cached tokens, GPU-seconds, cost, then for each
--             hour with use: hour of the day, and the same six};
--             "day\0\0hour" -> packed {GPU-seconds x7, costs x7, charged}, kinds as in costs.lua
LEDGER_DAYS = 31 -- ZSET fields of LEDGER, by day
OUTSTANDING = 32 -- HASH "class\0tenant" -> thousandths of weighted tokens that are charged by estimate and not settled
REPORTS = 33 -- HASH router -> packed {time (ms), its report about its requests}; while it has its lease
CONTROL = 34 -- HASH the autoscaler's orders: point, relief, relief_until (ms), standby ("\nreplica\n" for each),
--             standby_until (ms); and its own fields
QUARANTINED = 35 -- HASH digest of a content that kills engines -> packed {incident, end of the mark (ms)}
METERS = 36 -- HASH replica -> packed account as last heard, fields M_* below
BUDGETS = 37 -- HASH tenant -> packed {day, charges of the month before that day}

-- A pool.
P_TIME = 1 -- ms, the latest pool time that was stored
P_TICK = 2 -- ms, the last heartbeat of any router or replica
P_SKEW = 3 -- ms between pool time and the server's clock, after that ran backward
P_AMNESTY = 4 -- ms, until when every lease counts as live
P_VERSION = 5 -- of the registry
P_HEAD = 6 -- place of the last entry that returned to the head
P_TAIL = 7 -- place of the next arrival
P_V = 8 -- + class: virtual time, weighted tokens
P_S = 11 -- + class: tokens served while classes competed
P_SERVED = 14 -- the same for all classes together
P_RUN = 15 -- run id of the server
P_GRANTED = 16 -- + class: grants ever made
P_YIELDING = 19 -- entries in flight that were told to give way
P_RESULTS = 20 -- bytes of stored results
P_BORN = 21 -- ms, when this pool began; differs after a loss of all data
P_MARKS = 22 -- number of writes to QUARANTINED; nil before the first
P_LATE = 23 -- ms, when a late entry was last moved behind the others, 0 once the pool was empty; nil before the first

-- An entry.
OWNER = 1
TENANT = 2
CLASS = 3
PLACE = 4
PROMPT = 5
EXPECTED = 6
KV = 7
START_BY = 8 -- ms, 0 is never
CLIENT_KEY = 9
PREFERRED = 10 -- "" or "\0a\0b\0"
WEIGHT = 11
BASE = 12 -- of attempt ids
NUMBER = 13 -- of the last attempt
ATTEMPT = 14
REPLICA = 15
STATE = 16 -- w waiting, p parked because its owner has no lease, f in flight, o out of the line by an order
SUBMITTED = 17 -- ms
GRANTED = 18 -- ms
BEATS = 19 -- owner heartbeats since the grant
PREFILLED = 20 -- 0 or 1
CHARGED = 21 -- tokens, -1 before the first grant
COUNTED = 22 -- at least 1 when charged to its class as well; beyond 1: tokens of its later attempts
RESERVED = 23 -- replica that is reserved for it, or ""
ORDER = 24 -- "", "c", "e" or "f"
ADOPTED_RUN = 25 -- run id of the server when it was submitted
RESUME = 26 -- 0 or 1
PREEMPTIONS = 27
HELD_TOKENS = 28 -- tokens it holds of its tenant's quota, until it is settled; 0 when there is nothing to settle
TOKEN_RATE = 29 -- tokens per minute of that quota
COUNTED_OPEN = 30 -- 1 when it counts against its tenant's concurrency
LATE_AT = 31 -- ms, from when it lets others of its tenant pass; 0 or nil is never
STRICT_TOKENS = 32 -- tokens it took of a strict quota, until it has a slot; 0 or nil is none
TRACE = 33 -- span of its request; nil or "" is none
TOKENIZER = 34 -- digest of the tokenizer whose ids its client named; nil is none

-- A load.
W_SEQUENCES = 1
W_KV = 2
W_PREFILL = 3
HELD = 4 -- slots on record
EXTRA = 5 -- reported running, not on record
USED_KV = 6
USED_PREFILL = 7
R_STATE = 8
CLOSED = 9 -- 1 from a refused start to the next heartbeat
R_RESERVED = 10 -- request id that the replica is reserved for, or ""
BEAT = 11 -- ms of the last heartbeat
REPORTED = 12 -- 1 when USED_KV rests on a report
W_BATCH = 13 -- most slots of class BATCH, -1 for any
HELD_BATCH = 14 -- slots of class BATCH; kept correct while W_BATCH is not -1
WALLED = 15 -- ms, until when no entry at the front of the line is expected to run there; nil before the first time
SETTLED = 16 -- GPU-seconds that were settled since the last heartbeat
SETTLED_COST = 17 -- the same, charges

-- An account of a replica's time in GPU-seconds, as in heartbeats.py.
M_GPUS = 1
M_PRICE = 2 -- of a GPU-second
M_TOTAL = 3
M_STARTING = 4
M_IDLE = 5
M_DRAINING = 6
M_ENDED = 7
M_RUNNING = 8
M_HEARD = 9 -- ms
M_STANDBY = 10 -- nil of a replica of the last release

-- Bounds.
MIDDLE = 5000000000000000 -- first place; arrivals count up, returns count down, exact in a double
LATE_FROM = 7000000000000000 -- places from here on belong to late entries, behind all others
LATE_SHIFT = 4000000000000000 -- added to the place of an entry that becomes late, so late entries keep their order
CHUNK = 1000 -- entries that one call parks, puts back or forgets: each takes some 20 us
GRANTS_PER_REPLICA = 32 -- in one call
GRANTS_PER_CALL = 128 -- the rest waits for the next heartbeat; each replica sends one a second
REPLICAS_TRIED = 32 -- by a submit
WALLS_PER_CALL = 8 -- replicas for which one call looks beyond the front of the line; others wait for their heartbeat
WALL_MS = 1000 -- how long a load remembers that the front of the line can't run there
KEYS_PER_CALL = 64 -- keys, tenants or ledger lines that one call forgets
LINES_PER_CALL = 256 -- ledger lines that one call reads, in some 0.6 ms
HOURS_PER_ACCOUNT = 48 -- hours over which one account is spread; what is older goes to the oldest of them
HOUR_DAYS = 31 -- days for which lines keep their hours; a tenant's older days lose them when it has a new day
METER_MS = 3600000 -- how long the account of a replica without lease is kept
CHOICES = 16 -- most choices of a request; each is an entry of its own, "id/0" and so on
PREEMPT_SCAN = 16 -- waiting entries that preemption looks at
OWED_GRANTS = 16 -- most that a class below its share is owed, in grants of the size of its last one
OWED_LEAST = 256 -- least size of such a grant in tokens: small grants must not wipe out what is owed to large ones
TENANTS_SEEN = 64 -- tenants per class whose oldest entry `observe` reads
LATE_PER_CALL = 128 -- late entries that one call moves behind the others; the rest keep their turn for now
LATE_LEAST = 4 -- how many any call may move
LATE_PER_MS = 2 -- how many more for each millisecond since the last move: each takes some 25 us
MARKS = 256 -- contents in quarantine; those that end first make room
WORDS_PER_COMMAND = 512 -- arguments of one command for many members or fields; an even number
REPLICAS_SHOWN = 64 -- registries up to this size come back with every heartbeat
LINE_TENANTS = 32 -- tenants per class that `show_line` reads, those that are next
SLOTS_SEEN = 64 -- slots whose holders it looks at
QUOTAS_SEEN = 16 -- tenants that are in no line whose quotas it reads
WAITS_SEEN = 32 -- entries of which it tells what is ahead
