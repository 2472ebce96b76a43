"""The simulation's model of a cell grants as the scripts do."""

from __future__ import annotations

import random

import pytest

from cluster.clock import ManualClock
from cluster.models import Windows
from cluster.queue.entries import Grant, QueueEntry, QueueLimits, Settlement
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat
from cluster.queue.redis.queue import RedisQueue
from cluster.queue.redis.scripts import load_constants
from cluster.redis.in_process.server import InProcessRedis
from loadtest.benchmarks.cells import model_cell
from loadtest.benchmarks.cells.model_cell import ModelCell
from loadtest.benchmarks.cells.model_line import CellEntry, ModelReplica
from loadtest.benchmarks.cells.traffic import replica_name, tenant_name
from penstock.models import ReplicaState, RequestClass

ROUTERS = ("router-0", "router-1")
BOUNDLESS = 10**12
SHARES = [(0.0, 0.0, 0.0), (0.0, 0.3, 0.2)]


class Scripts:
    """A cell of production, on a Redis in this process."""

    def __init__(self, shares: tuple[float, float, float], lookahead: int) -> None:
        limits = QueueLimits(lookahead=lookahead, class_shares=shares, preempt_after_ms=0)
        self.queue = RedisQueue(InProcessRedis(ManualClock()), "pool", limits)
        self.replicas: dict[int, int] = {}
        self.attempts: dict[int, str] = {}
        self.seen: set[tuple[str, str]] = set()

    async def put_replica(self, number: int, sequences: int, entries: dict[int, CellEntry]) -> None:
        self.replicas[number] = sequences
        held = tuple(
            (f"q{each}", self.attempts[each])
            for each, entry in entries.items()
            if entry.on is not None and entry.on.number == number
        )
        windows = Windows(sequences, BOUNDLESS, BOUNDLESS)
        await self.queue.heartbeat_replica(ReplicaBeat(replica_name(number), b"", ReplicaState.READY, windows, held))

    async def link(self) -> list[tuple[int, str]]:
        """Send the routers' heartbeats; both reach all replicas."""
        every = tuple(replica_name(number) for number in self.replicas)
        found: list[tuple[int, str]] = []
        for name in ROUTERS:
            reply = await self.queue.heartbeat_router(RouterBeat(name, every, tuple(self.seen)))
            found += self.new(reply.mail.grants)
        return found

    async def submit(self, entry: CellEntry) -> None:
        named = QueueEntry(
            request_id=f"q{entry.number}",
            attempt_base=f"b{entry.number}",
            tenant=tenant_name(entry.tenant),
            request_class=RequestClass(entry.request_class),
            prompt_tokens=entry.prompt,
            expected_tokens=entry.expected,
            kv_tokens=1,
            start_within_ms=0,
            preferred_replicas=tuple(replica_name(number) for number in entry.preferred),
            weight=entry.weight,
        )
        answer = await self.queue.submit(ROUTERS[entry.router], named)
        self.own = [] if answer.grant is None else self.new([answer.grant])

    async def release(self, entry: CellEntry, output: int) -> list[tuple[int, str]]:
        mail = await self.queue.release(
            ROUTERS[entry.router], f"q{entry.number}", self.attempts[entry.number], Settlement(output)
        )
        return self.new(mail.grants)

    def new(self, grants: list[Grant] | tuple[Grant, ...]) -> list[tuple[int, str]]:
        """Return the grants that were not known."""
        found = []
        for grant in grants:
            if (grant.request_id, grant.attempt) not in self.seen:
                self.seen.add((grant.request_id, grant.attempt))
                number = int(grant.request_id[1:])
                self.attempts[number] = grant.attempt
                found.append((number, grant.replica_id))
        return found

    async def mail(self) -> list[tuple[int, str]]:
        """Return the grants that wait in the routers' mail."""
        return [pair for name in ROUTERS for pair in self.new((await self.queue.collect(name)).grants)]


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("seed", range(6))
async def test_the_model_grants_what_the_scripts_grant(seed: int, shares: tuple[float, float, float]) -> None:
    """Random calls: after each, the same requests have begun on the same replicas."""
    draw = random.Random(seed)
    lookahead = draw.choice((1, 3, 16))
    scripts, granted = Scripts(shares, lookahead), list[CellEntry]()
    model = ModelCell(granted.append, shares=shares, lookahead=lookahead)
    replicas = {number: ModelReplica(number, 0) for number in range(draw.randint(1, 4))}
    entries: dict[int, CellEntry] = {}

    for number, replica in replicas.items():
        sequences = draw.choice((1, 2, 4))
        await scripts.put_replica(number, sequences, {})
        model.put_replica(replica, sequences)
    await scripts.link()
    compared = 0
    for number in range(400):
        running = [each for each in entries.values() if each.on is not None]
        waiting = [each for each in entries.values() if each.waits]
        what = draw.choices(("submit", "release", "take out", "slots"), (6, 5, 1, 1))[0]
        found: list[tuple[int, str]] = []
        if what == "submit":
            preferred = tuple(draw.sample(sorted(replicas), draw.choice((0, 0, 1))))
            entry = CellEntry(
                number,
                draw.randrange(4),
                draw.randrange(3),
                prompt=draw.randint(1, 900),
                expected=draw.randint(1, 500),
                weight=draw.choice((1.0, 2.0, 4.0)),
            )
            entry.preferred, entry.router = preferred, draw.randrange(2)
            entries[number] = entry
            await scripts.submit(entry)
            found = scripts.own
            model.submit(entry)
        elif what == "release" and running:
            entry, output = draw.choice(running), draw.randint(0, 900)
            del entries[entry.number]
            found = await scripts.release(entry, output)
            model.release(entry, output)
        elif what == "take out" and waiting:
            entry = draw.choice(waiting)
            mail = await scripts.queue.take_out(ROUTERS[entry.router], f"q{entry.number}")
            assert mail is not None
            assert model.take_out(entry)
            del entries[entry.number]
            found = scripts.new(mail.grants)
        elif what == "slots":
            which, sequences = draw.choice(sorted(replicas)), draw.choice((0, 1, 2, 4))
            await scripts.put_replica(which, sequences, entries)
            model.put_replica(replicas[which], sequences)
        found += await scripts.mail()
        mine = sorted((each.number, replica_name(each.on.number)) for each in granted if each.on is not None)
        assert sorted(found) == mine, f"call {number}: {what}"
        compared += len(mine)
        granted.clear()

    assert compared > 100
    await scripts.queue.close()


def test_the_models_bounds_are_the_scripts() -> None:
    names = ("GRANTS_PER_REPLICA", "GRANTS_PER_CALL", "REPLICAS_TRIED", "OWED_GRANTS", "OWED_LEAST")
    constants = load_constants()
    assert [int(constants[name]) for name in names] == [getattr(model_cell, name) for name in names]


def test_an_entry_with_a_slot_is_not_taken_out() -> None:
    model = ModelCell(lambda _: None)
    model.put_replica(ModelReplica(0, 1), 1)
    entry = CellEntry(1, 0, 0, prompt=10, expected=10)
    model.submit(entry)
    assert not model.take_out(entry)
    assert 1 == model.running
