"""Every Redis name of the queue, what it holds and how long it lives.

All keys of a pool carry the pool's name in literal braces, so a cluster keeps them in one hash slot and one script may
use them all. Scripts get every key through KEYS and never build a name; what belongs to one request, tenant, router or
replica is a field or a member. `1` is the schema version: version N and N+1 may share a Redis.

No key has a TTL. An expiring key would vanish in a long outage, when nobody could renew it and nobody was dead. What a
process leaves behind is removed by `reap`, judged by pool time, which grants a full lease after any gap.
"""

from __future__ import annotations

from cluster.redis.keys import PREFIX, pool_key

POOL_KEYS = (
    "pool",  # STRING: clock, counters, registry version. For ever; a handful of numbers.
    "entries",  # HASH: a record per request, from submit until its owner releases it or is dead.
    "line",  # ZSET: entries that may be granted, from submit to grant, cancel or expiry.
    "active:0",  # ZSET per class: tenants in the line.
    "active:1",
    "active:2",
    "idle:0",  # ZSET per class: tenants out of the line that are ahead of their share; pruned as the floor passes them,
    "idle:1",  # gone when nothing waits or runs.
    "idle:2",
    "owners",  # ZSET: what each router owns, and its mail. A member lives as long as its entry.
    "slots",  # ZSET: who holds the replicas' slots, from grant to release.
    "load",  # HASH: windows and use of each replica, until its lease ends.
    "free",  # ZSET: replicas with room, by load; until their lease ends.
    "registry",  # HASH: signed record and statistics of each replica, until its lease ends.
    "replicas",  # ZSET: replica leases.
    "routers",  # ZSET: router leases.
    "parted",  # ZSET: routers whose lease ended, until their waiting entries went (attach_grace).
    "links",  # ZSET: which router reaches which replica; rewritten by heartbeats, gone with the router.
    "keys",  # HASH: clients' idempotency keys; a field lives as long as its request, and then as long as its result.
    "skips",  # HASH: how often a waiting entry was passed over, until it leaves the line.
    "prefs",  # HASH: how many waiting entries prefer a replica; a field lives while it is above 0.
    "deadlines",  # ZSET: waiting entries with a bound, by time; until they leave the line.
    "bells",  # HASH: routers whose bell rang; until they look.
    "key_due",  # ZSET: keys whose request is over, by the end of the result's window.
    "results",  # HASH: results of requests that had a key; for the result's window, the oldest go first for room.
    "quotas",  # HASH: what tenants used of their quotas; an hour after the last request, or until a debt is drained.
    "outputs",  # HASH: how long tenants' outputs are; as long as `quotas`.
    "open_counts",  # HASH: requests of tenants with a bound on concurrency; a field lives while it is above 0.
    "tenant_due",  # ZSET: tenants in `quotas` and `outputs`, by when they go.
    "ledger",  # HASH: a line per tenant and day, for as many days as the settings say, today included.
    "ledger_days",  # ZSET: fields of `ledger`, by day.
    "outstanding",  # HASH: what tenants were charged by estimate; a field lives while it is above 0.
    "reports",  # HASH: what each router counted of its requests; a field lives as long as the router's lease.
    "control",  # HASH: the autoscaler's lease, state and orders. For ever; a dozen fields, written by its own scripts.
    "quarantined",  # HASH: contents that kill engines; a field lives for `router.quarantine_s`, and until one is added.
)


def pool_keys(pool: str) -> tuple[str, ...]:
    """Name every key of a pool, in the order in which the scripts take them."""
    return tuple(pool_key(pool, name) for name in POOL_KEYS)


def bell_channel(router_id: str) -> str:
    """Name the pub/sub channel on which a router is told the pools that have mail for it. Not a key: no hash tag."""
    return f"{PREFIX}:bell:{router_id}"
