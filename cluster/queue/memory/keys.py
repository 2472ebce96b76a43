"""Clients' idempotency keys; mirrors redis/lua/keys.lua, which has the reasons."""

from __future__ import annotations

import re

from cluster.errors import KeyReusedError
from cluster.queue.entries import KnownRequest, QueueEntry, choice_ids
from cluster.queue.memory.state import KEYS_PER_CALL, Entry, PoolState

_CHOICE = re.compile(r"([^/]+)/\d+")


def request_of(request_id: str) -> str:
    """Return the id of the request that an entry belongs to."""
    match = _CHOICE.fullmatch(request_id)
    return match[1] if match else request_id


def field_of(tenant: str, key: str) -> str:
    """Return the name under which a client key is stored."""
    return f"{tenant}\0{key}"


def _digests(digest: str) -> tuple[str, str]:
    exact, _, plain = digest.partition("/")
    return exact, plain or exact


def find_key(pool: PoolState, tenant: str, key: str, request_id: str, digest: str) -> KnownRequest | None:
    """Return the request that a client key belongs to. None if the key is unknown, or if it belongs to this request and
    has no result.

    Raises:
        KeyReusedError: the key belongs to a request with another digest.
    """
    field = field_of(tenant, key)
    if field not in pool.client_keys:
        return None
    owner, *digests = pool.client_keys[field]
    if all(mine != known for mine, known in zip(_digests(digest), digests, strict=True)):
        raise KeyReusedError(key, owner)
    result = pool.results.get(field)
    if owner == request_of(request_id) and result is None:
        return None
    return KnownRequest(owner, result, _is_live(pool, owner))


def _is_live(pool: PoolState, request_id: str) -> bool:
    """Return whether a choice of the request waits or runs."""
    return any(name in pool.entries for name in (request_id, *choice_ids(request_id)))


def open_key(pool: PoolState, request: QueueEntry) -> None:
    """Give a key to a request that is submitted, unless another request has it."""
    field, owner = field_of(request.tenant, request.client_key), request_of(request.request_id)
    pool.client_keys.setdefault(field, (owner, *_digests(request.digest)))
    if owns_key(pool, field, owner):
        pool.key_due.discard(field)


def close_key(pool: PoolState, entry: Entry, *, ended: bool) -> None:
    """Free the key of a removed entry, unless its result is still to come or other choices of its request go on."""
    field = field_of(entry.request.tenant, entry.request.client_key)
    if not owns_key(pool, field, request_of(entry.id)):
        return
    if ended:
        pool.key_due.add(field, pool.now + pool.limits.result_ms)
    elif _is_live(pool, request_of(entry.id)):
        pool.key_due.add(field, pool.now + pool.limits.lease_ms)
    else:
        drop_key(pool, field)


def finish_key(pool: PoolState, field: str, request_id: str, result: bytes) -> bool:
    """Keep a result, or free the key if there is none to keep. Return False if another request has the key."""
    if not owns_key(pool, field, request_id):
        return False
    most = pool.limits.max_result_bytes
    if not result or not pool.limits.result_ms or len(result) > most:
        if field not in pool.results:
            drop_key(pool, field)
        return True
    _drop_result(pool, field)
    pool.results[field] = result
    pool.key_due.add(field, pool.now + pool.limits.result_ms)
    pool.result_bytes += len(result)
    for _ in range(len(pool.key_due)):
        if pool.result_bytes <= most:
            break
        _end_key(pool, pool.key_due.first(1)[0][1])
    return True


def owns_key(pool: PoolState, field: str, request_id: str) -> bool:
    """Return whether a key belongs to a request."""
    return field in pool.client_keys and pool.client_keys[field][0] == request_id


def drop_key(pool: PoolState, field: str) -> None:
    """Forget a key and its result."""
    pool.client_keys.pop(field, None)
    pool.key_due.discard(field)
    _drop_result(pool, field)


def id_of_key(pool: PoolState, tenant: str, key: str) -> str:
    """Return the request id of a key, without choice; empty if the key is unknown."""
    field = field_of(tenant, key)
    return pool.client_keys[field][0] if field in pool.client_keys else ""


def tidy_keys(pool: PoolState) -> None:
    """Forget keys whose time is over, except those of requests that go on; at most KEYS_PER_CALL."""
    for field in pool.key_due.up_to(pool.now, KEYS_PER_CALL):
        _end_key(pool, field)


def _end_key(pool: PoolState, field: str) -> None:
    known = field not in pool.results and pool.client_keys.get(field)
    if known and _is_live(pool, known[0]):
        pool.key_due.add(field, pool.now + max(pool.limits.lease_ms, pool.limits.result_ms))
    else:
        drop_key(pool, field)


def _drop_result(pool: PoolState, field: str) -> None:
    result = pool.results.pop(field, None)
    if result is not None:
        pool.result_bytes -= len(result)
