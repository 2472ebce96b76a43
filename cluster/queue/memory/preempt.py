"""Preemption: choice of the batch work that gives way; mirrors redis/lua/preempt.lua, which has the reasons."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.queue.memory.choice import Walk, reachable, suits
from cluster.queue.memory.fill import order
from cluster.queue.memory.state import PREEMPT_SCAN, Entry, Load, PoolState, Slots
from penstock.models import ReplicaState, RequestClass

_BATCH = int(RequestClass.BATCH)


def preempt(pool: PoolState, replica: str, load: Load, produced: Mapping[tuple[str, str], int]) -> None:
    """Order BATCH sequences of a replica to give way if INTERACTIVE entries have waited too long because of missing
    room.
    """
    limits = pool.limits
    if not limits.preempt_after_ms or load.state is not ReplicaState.READY or not pool.line_counts[0]:
        return
    share = limits.class_shares[_BATCH]
    below = pool.served_all > 0 and pool.served[_BATCH] < share * pool.served_all
    if share > 0 and below and not pool.batch_yields:
        return
    sequences = load.windows.sequences - load.held - load.extra
    kv = load.windows.kv_tokens - load.kv
    elsewhere = pool.yielding
    victims: list[tuple[int, str, Entry]] = []
    for request_id, attempt in sorted(pool.slots.get(replica, Slots()).started.items()):
        tokens = produced.get((request_id, attempt))
        if tokens is None:
            continue
        entry = pool.entries[request_id]
        if entry.order:
            sequences, kv = sequences + 1, kv + entry.request.kv_tokens
            elsewhere -= entry.order == "f"
        elif (
            entry.line[0] == _BATCH
            and tokens >= 0
            and entry.preemptions < limits.max_preemptions
            and pool.now - entry.granted >= limits.preempt_quantum_ms
        ):
            victims.append((entry.request.prompt_tokens + tokens, request_id, entry))
    if not victims:
        return
    victims.sort(key=lambda victim: victim[:2])
    taken = 0
    for waiting in _due(pool, replica, load, elsewhere):
        before = taken
        need = waiting.request.kv_tokens
        while (sequences < 1 or kv < need) and taken < len(victims):
            sequences, kv = sequences + 1, kv + victims[taken][2].request.kv_tokens
            taken += 1
        if sequences < 1 or kv < need:
            taken = before
            break
        sequences, kv = sequences - 1, kv - need
    for _, _, entry in victims[:taken]:
        order(pool, entry, "f")


def _due(pool: PoolState, replica: str, load: Load, spared: int) -> list[Entry]:
    scanned: list[Entry] = []
    walk = Walk(pool, int(RequestClass.INTERACTIVE), PREEMPT_SCAN)
    while len(scanned) < PREEMPT_SCAN and (entry := walk.next()) is not None:
        walk.charge(entry)
        scanned.append(entry)

    def due(entries: list[Entry]) -> list[Entry]:
        waited = (entry for entry in entries if pool.now - entry.submitted >= pool.limits.preempt_after_ms)
        return [entry for entry in waited if suits(pool, replica, load, entry)]

    found = due(scanned)
    if not found and len(scanned) == PREEMPT_SCAN:
        found = due(reachable(pool, replica, [int(RequestClass.INTERACTIVE)], set())[:PREEMPT_SCAN])
    return found[max(0, spared) :]
