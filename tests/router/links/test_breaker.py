"""A replica that fails again and again is left alone for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.models import SequenceEnd
from cluster.settings import EngineKind, PoolSettings, SimSettings
from deployments.engines.base import Engine
from deployments.engines.factory import build_engine
from penstock.models import FinishReason
from router.links.breaker import LONGEST_S, Breaker, BreakerLimits
from tests.support.stack import MODEL, request, running_stack, stream_request
from tests.support.waiting import until

LIMITS = BreakerLimits(failures=3, open_s=5.0)


def fail(breaker: Breaker, times: int, now: float) -> None:
    for _ in range(times):
        breaker.failed(now)


def test_it_opens_after_failures_in_a_row() -> None:
    breaker = Breaker(LIMITS)
    fail(breaker, 2, 0.0)
    assert not breaker.is_open(0.0)
    breaker.succeeded()
    fail(breaker, 2, 1.0)
    assert not breaker.is_open(1.0)
    fail(breaker, 1, 1.0)
    assert breaker.is_open(1.0)
    assert breaker.is_open(5.9)
    assert not breaker.is_open(6.0)


def test_each_pause_that_ends_in_a_failure_is_followed_by_one_twice_as_long() -> None:
    breaker = Breaker(LIMITS)
    fail(breaker, 3, 0.0)
    # What had begun before it opened tells nothing new.
    fail(breaker, 60, 1.0)
    assert not breaker.is_open(5.0)
    now, pauses = 5.0, []
    for _ in range(6):
        fail(breaker, 1, now)
        end = next(now + s for s in range(1, 200) if not breaker.is_open(now + s))
        pauses.append(end - now)
        now = end
    assert pauses == [10, 20, 40, LONGEST_S, LONGEST_S, LONGEST_S]
    breaker.succeeded()
    fail(breaker, 3, now)
    assert not breaker.is_open(now + 5.0)


def test_it_can_be_switched_off() -> None:
    breaker = Breaker(BreakerLimits(failures=0))
    fail(breaker, 100, 0.0)
    assert not breaker.is_open(0.0)


class Flaky:
    """An engine that fails every sequence while it is `broken`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.broken = True
        self.tried = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def submit(self, sequence_id: str, spec: Any, sink: Any) -> None:
        if not self.broken or sequence_id.startswith("first-token"):
            await self.engine.submit(sequence_id, spec, sink)
            return
        self.tried += 1
        sink.on_end(SequenceEnd(FinishReason.ERROR, error="no luck"))


def sim_engine() -> Engine:
    settings = PoolSettings(model=MODEL, engine=EngineKind.SIM, sim=SimSettings(base_ms=1.0, max_num_seqs=4))
    return build_engine(settings)


async def test_requests_leave_a_replica_that_fails_them_and_come_back_when_it_works(tmp_path: Path) -> None:
    router = {"breaker_failures": 3, "breaker_open_s": 3.0, "max_attempts": 4}
    async with running_stack(tmp_path, replicas=0, router=router) as stack:
        flaky = Flaky(sim_engine())
        flaky.broken = False
        await stack.add_replica(engine=flaky)  # type: ignore[arg-type]
        await stack.add_replica(engine=sim_engine())
        flaky.broken = True
        replicas = stack.routers[0].pools["demo"].replicas
        bad = stack.replicas[0].plan.replica_id

        answers = await asyncio.gather(*(stack.inference().Generate(request(f"{n}", max_tokens=3)) for n in range(40)))
        assert all(answer.receipt.attempts[-1].replica_id != bad for answer in answers)
        assert replicas.paused() == {bad}
        assert 3 <= flaky.tried <= 12

        flaky.broken = False
        await until(lambda: not replicas.paused())

        async def served() -> bool:
            calls = (stack.inference().Generate(request(f"{n}", max_tokens=3)) for n in range(12))
            return any(answer.receipt.attempts[0].replica_id == bad for answer in await asyncio.gather(*calls))

        await until(served)
        assert replicas.paused() == frozenset()


async def test_what_clients_do_wrong_pauses_nobody(tmp_path: Path) -> None:
    router = {"breaker_failures": 1}
    async with running_stack(tmp_path, sim={"base_ms": 2.0}, router=router) as stack:
        for _ in range(3):
            call = stack.inference().StreamGenerate(stream_request(max_tokens=500))
            await call.read()
            call.cancel()
            with pytest.raises(grpc.aio.AioRpcError):
                await stack.inference().Generate(request(max_tokens=500, ignore_eos=True), timeout=0.1)
        await until(lambda: stack.replicas[0].table.sequences == 0)
        assert stack.routers[0].pools["demo"].replicas.paused() == frozenset()
        await stack.inference().Generate(request(max_tokens=3))
