"""Redis keys of the queue: content and lifetime of each.

All keys of a pool contain the pool's name in literal braces. So a Redis Cluster keeps them in one hash slot, and one
script may use them all. Scripts get every key through KEYS and never build a name. Data of one request, tenant, router
or replica is a field or a member. `1` is the schema version: versions N and N+1 may share a Redis.

No key has a TTL. An expiring key would vanish in a long outage, in which no process could renew it and none was dead.
`reap` removes what a dead process left behind. It judges by pool time, which grants a full lease after any gap.
"""

from __future__ import annotations

from cluster.redis.keys import PREFIX, pool_key

POOL_KEYS = (
    "pool",  # STRING: clock, counters, registry version. For ever; a few numbers.
    "entries",  # HASH: a record per entry, from submit until its owner releases it or is dead.
    "line",  # ZSET: entries that may be granted, from submit to grant, cancel or expiry.
    "active:0",  # ZSET per class: tenants in the line.
    "active:1",
    "active:2",
    "idle:0",  # ZSET per class: tenants out of the line that are ahead of their share; removed as the floor passes
    "idle:1",  # them, and when nothing waits or runs.
    "idle:2",
    "owners",  # ZSET: what each router owns, and its mail. A member lives as long as its entry.
    "slots",  # ZSET: holders of the replicas' slots, from grant to release.
    "load",  # HASH: windows and use of each replica, until its lease ends.
    "free",  # ZSET: replicas with room, by load; until their lease ends.
    "registry",  # HASH: signed record and statistics of each replica, until its lease ends.
    "replicas",  # ZSET: replica leases.
    "routers",  # ZSET: router leases.
    "parted",  # ZSET: routers whose lease ended, until their waiting entries are removed (attach_grace).
    "links",  # ZSET: which router reaches which replica; written by heartbeats, removed with the router.
    "keys",  # HASH: clients' idempotency keys; a field lives as long as its request, and then as long as its result.
    "skips",  # HASH: how often a waiting entry was passed over, until it leaves the line.
    "prefs",  # HASH: how many waiting entries prefer a replica; a field lives while it is above 0.
    "deadlines",  # ZSET: waiting entries with a bound, by time; until they leave the line.
    "bells",  # HASH: routers whose bell rang; until they read their mail.
    "key_due",  # ZSET: keys whose request is over, by the time when they are forgotten.
    "results",  # HASH: results of requests with a key, for `queue.result_s`; if room is short the oldest go first.
    "quotas",  # HASH: tenants' use of their quotas; until an hour after the last request, or until a debt is drained.
    "outputs",  # HASH: histograms of tenants' output lengths; as long as `quotas`.
    "open_counts",  # HASH: requests of tenants with a bound on concurrency; a field lives while it is above 0.
    "tenant_due",  # ZSET: tenants in `quotas` and `outputs`, by the time when they are forgotten.
    "ledger",  # HASH: a line per tenant and day, and one of costs per hour, for `queue.ledger_days`, today included.
    "ledger_days",  # ZSET: fields of `ledger`, by day.
    "outstanding",  # HASH: tenants' charges by estimate that are not settled; a field lives while it is above 0.
    "reports",  # HASH: each router's counters of its requests; a field lives as long as the router's lease.
    "control",  # HASH: the autoscaler's lease, state and orders. For ever; a dozen fields, written by its own scripts.
    "quarantined",  # HASH: contents that kill engines; for `router.quarantine_s`, removed when the next one is added.
    "meters",  # HASH: each replica's account as last heard, until an hour after that.
    "budgets",  # HASH: charges of the month's earlier days, of tenants with a budget per month; as long as `quotas`.
)


def pool_keys(pool: str) -> tuple[str, ...]:
    """Return every key of a pool, in the order in which the scripts take them."""
    return tuple(pool_key(pool, name) for name in POOL_KEYS)


def bell_channel(router_id: str) -> str:
    """Return the pub/sub channel on which a router learns which pools have mail for it. A channel is no key, so it has
    no hash tag.
    """
    return f"{PREFIX}:bell:{router_id}"
