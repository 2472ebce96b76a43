"""A request that kills engines: at most two deaths, and nobody beside it fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.errors import UnavailableError
from cluster.models import GenerationSpec
from cluster.queue.entries import Mark
from cluster.settings import EngineKind, PoolSettings, SimSettings
from deployments.engines.base import TokenSink
from deployments.engines.factory import resolve_model
from deployments.engines.sim.engine import SimEngine
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.dispatch.suspects import Suspects
from router.generation.attempt import content_digest
from tests.router.dispatch.streams import error_of
from tests.support.stack import MODEL, Stack, collect, ids_of, running_stack, stream_request
from tests.support.waiting import until

POISON = "Poison: tell me."
SIM = {"base_ms": 15.0, "max_num_seqs": 32}


class Fragile(SimEngine):
    """Dies soon after a certain prompt came."""

    deadly: tuple[int, ...] = ()
    deaths = 0

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        await super().submit(sequence_id, spec, sink)
        if tuple(spec.prompt_token_ids) == Fragile.deadly:
            # Later it might have output first, and who has output is no suspect.
            asyncio.get_running_loop().call_soon(self._crash)

    def _crash(self) -> None:
        if not self._death:
            Fragile.deaths += 1
        self.die()


def fragile() -> Fragile:
    pool = PoolSettings(model=MODEL, engine=EngineKind.SIM, sim=SimSettings(base_ms=15.0, max_num_seqs=32))
    return Fragile(pool, resolve_model(MODEL))


async def test_two_engines_at_most_and_no_innocent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_stack(tmp_path, replicas=4, sim=SIM, engine=fragile) as stack:
        prompts = [f"Innocent number {number:02} asks" for number in range(64)]
        await _poison(stack, monkeypatch)
        calls = [stack.inference().StreamGenerate(stream_request(p, max_tokens=40, ignore_eos=True)) for p in prompts]
        poison = stack.inference().StreamGenerate(stream_request(POISON, max_tokens=40, ignore_eos=True))
        done = await asyncio.gather(*(collect(call) for call in calls), _failure(poison))
        reason, facts = error_of(done.pop())

        assert ("QUARANTINED", True) == (reason, facts["incident"] != "")
        assert 2 == Fragile.deaths
        assert {40} == {len(ids_of(events)) for events in done}
        again = await _failure(stack.inference().StreamGenerate(stream_request(POISON, max_tokens=40, ignore_eos=True)))
        assert grpc.StatusCode.FAILED_PRECONDITION is again.code()
        assert facts["incident"] == error_of(again)[1]["incident"]
        assert 2 == Fragile.deaths
        await until(lambda: stack.routers[0].pools["demo"].active == 0)


async def test_the_search_of_another_router_convicts_no_innocent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each router runs its suspects one at a time, and the replica none beside another's."""
    async with running_stack(tmp_path, routers=2, replicas=3, sim=SIM, engine=fragile) as stack:
        await _poison(stack, monkeypatch)
        ask = [stream_request(f"Innocent number {number:02} asks", max_tokens=20) for number in range(48)]
        engines = [replica._engine for replica in stack.replicas]
        calls = [stack.inference(1).StreamGenerate(request) for request in ask]
        poison = stack.inference(0).StreamGenerate(stream_request(POISON, max_tokens=40, ignore_eos=True))
        # Those that came with it are suspects of the other router.
        reason, _facts = error_of((await asyncio.gather(_failure(poison), *(collect(call) for call in calls)))[0])

        assert ("QUARANTINED", 2) == (reason, Fragile.deaths)
        assert 2 == sum(bool(engine._death) for engine in engines)  # type: ignore[attr-defined]


async def test_every_router_turns_away_what_one_convicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was turned away by one router goes to the other, and takes no third engine there."""
    async with running_stack(tmp_path, routers=2, replicas=3, sim=SIM, engine=fragile) as stack:
        await _poison(stack, monkeypatch)
        ask = stream_request(POISON, max_tokens=40, ignore_eos=True)
        ends = [error_of(await _failure(stack.inference(number).StreamGenerate(ask))) for number in (0, 1, 1)]

        assert [("QUARANTINED", ends[0][1]["incident"])] * 3 == [(reason, facts["incident"]) for reason, facts in ends]
        assert 2 == Fragile.deaths
        # The other router is in its right mind.
        other = stack.inference(1).StreamGenerate(stream_request("Innocent", max_tokens=20, ignore_eos=True))
        assert 20 == len(ids_of(await collect(other)))


async def test_copies_in_line_at_another_router_are_turned_away_too(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={**SIM, "max_num_seqs": 1}) as stack:
        innocent = stack.inference(0).StreamGenerate(stream_request("Innocent", max_tokens=100, ignore_eos=True))
        await until(lambda: stack.replicas[0].table.sequences == 1)
        # It keeps its slot until all is done.
        stack.engines[0].wedge()
        ask = stream_request(POISON, max_tokens=40, ignore_eos=True)
        copies = [asyncio.create_task(_failure(stack.inference(1).StreamGenerate(ask))) for _ in range(3)]
        here, there = (router.pools["demo"] for router in stack.routers)
        await until(lambda: there.beat is not None and len(there.beat.positions) == 3)
        content = content_digest(next(iter(there.choices.values())).start, ())
        await here._context.queue.quarantine("router-0", Mark(content, "i1", 60_000))

        assert [("QUARANTINED", "i1")] * 3 == [
            (reason, facts["incident"]) for reason, facts in map(error_of, await asyncio.gather(*copies))
        ]
        stack.engines[0]._moving.set()
        assert 100 == len(ids_of(await collect(innocent)))
        await until(lambda: there.active == 0 and here.beat is not None and sum(here.beat.waiting) == 0)


async def test_without_the_search_it_takes_an_engine_with_each_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above would see if nobody looked for the culprit."""
    router = {"quarantine_s": 0, "max_attempts": 4}
    async with running_stack(tmp_path, replicas=4, sim=SIM, engine=fragile, router=router) as stack:
        await _poison(stack, monkeypatch)
        failed = await _failure(stack.inference().StreamGenerate(stream_request(POISON, max_tokens=40)))

        assert "GENERATION_FAILED" == error_of(failed)[0]
        assert 4 == Fragile.deaths


async def _poison(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = api.CountTokensRequest(model="demo", prompt=types.Prompt(text=POISON))
    counted = await stack.inference().CountTokens(asked)
    monkeypatch.setattr(Fragile, "deadly", tuple(counted.token_ids))
    monkeypatch.setattr(Fragile, "deaths", 0)


async def _failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _exhaust(call)
    return caught.value


async def _exhaust(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_held_suspect_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two suspects, and no replica for the first: the second one is held, and leaves cleanly."""
    async with running_stack(tmp_path, sim=SIM) as stack:
        engine: Any = stack.replicas[0]._engine
        engine.wedge()
        calls = [stack.inference().StreamGenerate(stream_request(f"number {number}")) for number in range(2)]
        await until(lambda: stack.replicas[0].table.sequences == 2)
        engine.die()
        pool = stack.routers[0].pools["demo"]
        await until(lambda: len(pool.quarantine.held) == 1)
        for call in calls:
            call.cancel()
        await until(lambda: (pool.active, pool.quarantine.held) == (0, set()))
        await until(lambda: pool.beat is not None and (0, 0) == (sum(pool.beat.waiting), pool.beat.running))


async def test_a_held_suspect_that_is_left_to_its_clients_next_call_is_held_no_more(tmp_path: Path) -> None:
    """That call waits in line under the same id, and gives up its place there, not a slot."""
    async with running_stack(tmp_path, sim=SIM) as stack:
        engine: Any = stack.replicas[0]._engine
        engine.wedge()
        calls = [stack.inference().StreamGenerate(stream_request(f"number {number}")) for number in range(2)]
        await until(lambda: stack.replicas[0].table.sequences == 2)
        engine.die()
        pool = stack.routers[0].pools["demo"]
        await until(lambda: len(pool.quarantine.held) == 1)
        held = pool.choices[next(iter(pool.quarantine.held))]
        held.leave(UnavailableError("its replica is not reached"))

        assert set() == pool.quarantine.held
        for call in calls:
            call.cancel()
        await until(lambda: pool.active == 0)


def test_suspects_run_one_at_a_time() -> None:
    suspects = Suspects()
    assert suspects.death(["a", "b", "c"]) is None
    assert ["a", None] == [suspects.next_canary(), suspects.next_canary()]
    suspects.clear("a")
    assert ["b", None] == [suspects.next_canary(), suspects.next_canary()]
    suspects.clear("c")
    suspects.clear("b")
    assert suspects.next_canary() is None


def test_the_only_suspect_of_a_second_death_is_convicted() -> None:
    suspects = Suspects()
    suspects.death(["a", "b"])
    assert "a" == suspects.next_canary()
    assert "a" == suspects.death(["a"])
    assert "b" == suspects.next_canary()


def test_one_death_alone_convicts_nobody() -> None:
    suspects = Suspects()
    assert suspects.death(["a"]) is None
    assert "a" == suspects.next_canary()
    # Somebody new came to the same replica, so it is not the only one; but it was once before.
    assert "a" == suspects.death(["b", "a"])
    assert "b" == suspects.next_canary()


def test_who_was_never_alone_is_not_convicted() -> None:
    suspects = Suspects()
    suspects.death(["a", "b"])
    assert "a" == suspects.next_canary()
    assert suspects.death(["a", "new"]) is None
    assert ["b", None] == [suspects.next_canary(), suspects.next_canary()]


def test_a_quarantine_ends() -> None:
    suspects = Suspects()
    assert not suspects.watchful
    suspects.quarantine(b"x", "i1", until=160.0)
    found = suspects.turned_away(b"x", 159.0)
    assert found is not None
    assert ("i1", None) == (found.incident, suspects.turned_away(b"y", 159.0))
    assert suspects.turned_away(b"x", 161.0) is None
    assert not suspects.watchful
