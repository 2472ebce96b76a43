"""A request that kills engines: at most two deaths, and nobody beside it fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.models import GenerationSpec
from cluster.settings import EngineKind, PoolSettings, SimSettings
from deployments.engines.base import TokenSink
from deployments.engines.factory import resolve_model
from deployments.engines.sim.engine import SimEngine
from router.dispatch.poison import Suspects
from tests.router.dispatch.test_replica_death import error_of
from tests.support.stack import MODEL, collect, ids_of, running_stack, stream_request
from tests.support.waiting import until

POISON = "Poison: tell me."
SIM = {"base_ms": 15.0, "max_num_seqs": 32}


class Fragile(SimEngine):
    """Dies some time after a prompt of a certain length came."""

    deadly_tokens = 0
    deaths = 0

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        await super().submit(sequence_id, spec, sink)
        if len(spec.prompt_token_ids) == Fragile.deadly_tokens and not spec.resume:
            asyncio.get_running_loop().call_later(0.01, self._crash)

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
        lengths = [await _prompt_tokens(stack, prompt) for prompt in (POISON, prompts[0], prompts[63])]
        assert lengths[0] not in lengths[1:]
        monkeypatch.setattr(Fragile, "deadly_tokens", lengths[0])
        monkeypatch.setattr(Fragile, "deaths", 0)

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


async def _prompt_tokens(stack: Any, prompt: str) -> int:
    reply = await stack.inference().Generate(stream_request(prompt, max_tokens=1).generate)
    return int(reply.usage.prompt_tokens)


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
        await until(lambda: len(pool._in_doubt) == 1)
        for call in calls:
            call.cancel()
        await until(lambda: (pool.active, pool._in_doubt) == (0, set()))
        await until(lambda: pool.beat is not None and (0, 0) == (sum(pool.beat.waiting), pool.beat.running))


def test_suspects_run_one_at_a_time() -> None:
    suspects = Suspects(600.0)
    assert suspects.death(["a", "b", "c"]) is None
    assert ["a", None] == [suspects.next_canary(), suspects.next_canary()]
    suspects.clear("a")
    assert ["b", None] == [suspects.next_canary(), suspects.next_canary()]
    suspects.clear("c")
    suspects.clear("b")
    assert suspects.next_canary() is None


def test_the_only_suspect_of_a_second_death_is_convicted() -> None:
    suspects = Suspects(600.0)
    suspects.death(["a", "b"])
    assert "a" == suspects.next_canary()
    assert "a" == suspects.death(["a"])
    assert "b" == suspects.next_canary()


def test_one_death_alone_convicts_nobody() -> None:
    suspects = Suspects(600.0)
    assert suspects.death(["a"]) is None
    assert "a" == suspects.next_canary()
    # Somebody new came to the same replica, so it is not the only one; but it was once before.
    assert "a" == suspects.death(["b", "a"])
    assert "b" == suspects.next_canary()


def test_who_was_never_alone_is_not_convicted() -> None:
    suspects = Suspects(600.0)
    suspects.death(["a", "b"])
    assert "a" == suspects.next_canary()
    assert suspects.death(["a", "new"]) is None
    assert ["b", None] == [suspects.next_canary(), suspects.next_canary()]


def test_a_quarantine_ends() -> None:
    suspects = Suspects(60.0)
    assert not suspects.watchful
    suspects.quarantine(b"x", "i1", now=100.0)
    found = suspects.turned_away(b"x", 159.0)
    assert found is not None
    assert ("i1", None) == (found.incident, suspects.turned_away(b"y", 159.0))
    assert suspects.turned_away(b"x", 161.0) is None
    assert not suspects.watchful
