"""A router and the store agree in the end, whatever was lost between the two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from cluster.errors import QueueUnavailableError
from cluster.queue.entries import Adopted, Grant, Holding, Holdings, Mail, Where
from deployments.replica.attempts import Refused
from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import types_pb2 as types
from router.dispatch.pool_context import PoolContext
from router.dispatch.reconcile import Finding, Reconciler, Remedy, differences
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState
from router.links.placement import Placement
from tests.cluster.queue.backends import entry
from tests.router.links.parts import read_until
from tests.support.stack import Stack, collect, ids_of, request, running_stack, stream_request
from tests.support.waiting import until

WAITING, RUNNING = ChoiceState.WAITING, ChoiceState.RUNNING
ONE_SLOT = {"base_ms": 5.0, "max_num_seqs": 1}


def choice(state: ChoiceState, *, run_id: str = "run", taken_over: bool = False) -> Any:
    asked, metering = SimpleNamespace(tenant="acme"), SimpleNamespace(closed=True)
    return SimpleNamespace(
        state=state, run_id=run_id, taken_over=taken_over, attempt="q.1", tokens=7, entry=asked, metering=metering
    )


@pytest.mark.parametrize(
    ("held", "choices", "found"),
    [
        ([Holding("q", Where.SLOT, "q.1")], {"q": choice(RUNNING)}, None),
        ([Holding("q", Where.SLOT, "q.1")], {}, Finding(Remedy.RELEASE, "q", "q.1")),
        ([Holding("q", Where.SLOT, "q.1")], {"q": choice(WAITING)}, Finding(Remedy.REQUEUE, "q", "q.1")),
        ([Holding("q", Where.LINE)], {"q": choice(WAITING)}, None),
        ([Holding("q", Where.LINE)], {}, Finding(Remedy.WITHDRAW, "q")),
        # Heartbeats take a grant back that nobody began, and mail is told until it is answered.
        ([Holding("q", Where.GRANT, "q.1")], {}, None),
        ([Holding("q", Where.GRANT, "q.1")], {"q": choice(WAITING)}, None),
        ([Holding("q", Where.MAIL)], {}, None),
        ([Holding("q", Where.MAIL)], {"q": choice(WAITING)}, None),
        ([], {"q": choice(WAITING)}, Finding(Remedy.SUBMIT, "q")),
        ([], {"q": choice(WAITING, run_id="")}, None),  # It is being submitted.
        ([], {"q": choice(RUNNING, taken_over=True)}, Finding(Remedy.ADOPT, "q", "q.1")),
        ([], {"q": choice(RUNNING)}, None),  # Its client may have gone to another router.
    ],
)
def test_what_differs_has_a_remedy(held: Sequence[Holding], choices: dict[str, Any], found: Finding | None) -> None:
    assert ({found} if found else set()) == differences(held, choices, ())
    assert set() == differences(held, choices, {"q"})


class FakeQueue:
    """Lists what it is given, a page of one each."""

    def __init__(self) -> None:
        self.held: list[Holding] = []
        self.adopted: list[str] = []

    async def holdings(self, _router: str, after: bytes, _limit: int) -> Holdings:
        number = int(after or 0)
        more = str(number + 1).encode() if number + 1 < len(self.held) else b""
        return Holdings(tuple(self.held[number : number + 1]), more)

    async def adopt(self, _router: str, _tenant: str, request_id: str) -> None:
        self.adopted.append(request_id)


class FakeReleases:
    """Remembers what the store is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def untold(self) -> set[str]:
        return set()

    def release(self, request_id: str, attempt: str, _used: object) -> None:
        self.told.append(("release", request_id, attempt))


def reconciler(
    queue: Any, choices: Any, releases: Any = None, *, submit: Any = None, started: Any = None
) -> Reconciler:
    context = PoolContext("demo", "A", queue, Mock(), choices)
    return Reconciler(context, releases or FakeReleases(), tuple, submit or AsyncMock(), started or Mock())


async def test_who_waits_here_and_is_served_elsewhere_has_been_taken_over() -> None:
    """The store may also have forgotten an adoption; then the old owner gives it up first."""
    queue, waits = FakeQueue(), Mock(state=WAITING, run_id="run", taken_over=False)
    audit = reconciler(queue, {"q": waits}, submit=AsyncMock(return_value=False))
    for _ in range(5):
        await audit.look()
    waits.on_detached.assert_not_called()
    await audit.look()
    waits.on_detached.assert_called_once()


async def test_only_what_stays_is_mended_and_adoption_is_asked_for_once() -> None:
    queue, returns, choices = FakeQueue(), FakeReleases(), dict[str, Any]()
    audit = reconciler(queue, choices, returns)
    queue.held = [Holding("slow", Where.SLOT, "s.1"), Holding("lost", Where.SLOT, "l.1")]
    await audit.look()
    await audit.look()
    queue.held = queue.held[1:]
    assert [] == returns.told
    await audit.look()
    assert [("release", "lost", "l.1")] == returns.told

    queue.held, choices["q"] = [], choice(RUNNING, taken_over=True)
    for _ in range(5):
        await audit.look()
    assert ["q"] == queue.adopted
    assert 0 == audit.mended[Remedy.ADOPT]  # The store knows none.


@pytest.mark.parametrize(("grant", "told"), [("q.1", [("q", "q.1")]), ("q.2", [])])
async def test_an_adopted_attempt_is_reported_as_started(grant: str, told: list[tuple[str, str]]) -> None:
    queue, started = FakeQueue(), Mock()
    queue.adopt = AsyncMock(return_value=Adopted(Grant("q", grant, "r1"), 0))  # type: ignore[method-assign]
    choices = {"q": choice(RUNNING, taken_over=True)}
    audit = reconciler(queue, choices, started=started)
    await audit.look()
    assert told == [each.args for each in started.call_args_list]
    # Its end is still to come, and to be counted here.
    assert not choices["q"].metering.closed
    assert 1 == audit.mended[Remedy.ADOPT]


# --- a router, a replica and Redis in process -------------------------------------------------------------------------


async def serves_again(stack: Stack, router: int = 0) -> None:
    """The only slot is free."""
    pool = stack.routers[router].pools["demo"]
    await until(lambda: pool.beat is not None and (pool.beat.running, pool.beat.waiting) == (0, (0, 0, 0)), 20)
    assert 2 == (await stack.inference(router).Generate(request(max_tokens=2, ignore_eos=True))).usage.output_tokens


def forget_one(patch: pytest.MonkeyPatch, queue: Any, call: str) -> None:
    """Let the store answer the next call of this kind and forget it, as before a failover."""
    kept = getattr(queue, call)

    async def forgotten(*_: object) -> Mail:
        patch.setattr(queue, call, kept)
        return Mail()

    patch.setattr(queue, call, forgotten)


async def test_a_release_that_the_store_forgot_is_made_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_stack(tmp_path, sim=ONE_SLOT) as stack:
        pool = stack.routers[0].pools["demo"]
        call = stack.inference().StreamGenerate(stream_request(max_tokens=100, ignore_eos=True))
        await read_until(call, 10)
        forget_one(monkeypatch, pool._context.queue, "release")
        await collect(call)
        await serves_again(stack)
        assert 1 == pool.reconciler.mended[Remedy.RELEASE]
        found = stack.routers[0]._metrics.registry.get_sample_value
        assert 1 == found("penstock_router_mended_total", {"pool": "demo", "how": "release"})


async def test_who_waits_and_was_given_up_by_the_store_is_put_in_line_again(tmp_path: Path) -> None:
    """As after a router was cut off for longer than its lease and grace."""
    async with running_stack(tmp_path, sim=ONE_SLOT) as stack:
        pool = stack.routers[0].pools["demo"]
        slot = stack.inference().StreamGenerate(stream_request(max_tokens=200, ignore_eos=True))
        await slot.read()
        call = stack.inference().StreamGenerate(stream_request("later", max_tokens=5, ignore_eos=True))
        queued = (await call.read()).queued
        await pool._context.queue.withdraw(stack.routers[0].router_id, queued.request_id, None)
        await collect(slot)
        assert 5 == len(ids_of(await collect(call)))
        assert 1 == pool.reconciler.mended[Remedy.SUBMIT]
        await serves_again(stack)


async def test_a_requeue_that_the_store_forgot_is_made_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_stack(tmp_path, sim=ONE_SLOT) as stack:
        pool = stack.routers[0].pools["demo"]
        call = stack.inference().StreamGenerate(stream_request(max_tokens=300, ignore_eos=True))
        events = await read_until(call, 10)
        forget_one(monkeypatch, pool._context.queue, "requeue")
        await stack.kill_replica(0)
        await stack.add_replica()
        events += await collect(call)
        assert 300 == len(ids_of(events))
        assert 1 == pool.reconciler.mended[Remedy.REQUEUE]
        await serves_again(stack)


async def test_a_refusal_that_the_store_missed_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start was reported before, so that no heartbeat takes the grant back."""
    async with running_stack(tmp_path, sim=ONE_SLOT) as stack:
        pool, table = stack.routers[0].pools["demo"], stack.replicas[0].table
        start, refuse = table.start, pool._context.queue.refuse

        async def full(*_: object, **__: object) -> Any:
            monkeypatch.setattr(table, "start", start)
            return Refused.WINDOW_FULL, "its limit was just lowered"

        async def away(*_: object) -> Mail:
            await until(lambda: not pool._membership._started)
            monkeypatch.setattr(pool._context.queue, "refuse", refuse)
            raise QueueUnavailableError("no answer")

        monkeypatch.setattr(table, "start", full)
        monkeypatch.setattr(pool._context.queue, "refuse", away)
        call = stack.inference().StreamGenerate(stream_request(max_tokens=3, ignore_eos=True))
        assert 3 == len(ids_of(await collect(call)))
        await serves_again(stack)


async def test_a_takeover_without_the_queue_is_on_record_once_it_answers(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim=ONE_SLOT) as stack:
        body = stream_request(max_tokens=600, ignore_eos=True)
        first = stack.inference(0).StreamGenerate(body)
        events = await read_until(first, 7)
        await until(lambda: stack.routers[0].pools["demo"].beat.running == 1)
        stack.store.down = True
        [started] = [event.started for event in events if event.HasField("started")]
        body.resume.resume_token = started.resume_token
        body.resume.received_tokens.append(len(ids_of(events)))
        second = stack.inference(1).StreamGenerate(body)
        rest = await read_until(second, 20)
        stack.store.down = False
        events = rest + await collect(second)
        end = events[-1].finished
        assert (600, types.FINISH_REASON_LENGTH) == (end.usage.output_tokens, end.choices[0].finish_reason)
        await serves_again(stack, router=1)


def test_attempts_have_new_names_in_a_store_that_forgot_them() -> None:
    one = Choice(0, entry("q"), pb.Start(), Mock())
    assert one.entry.attempt_base == one.wait.entry_now().attempt_base
    one.run_on(Grant("q", "base-q.1", "r1"), Placement(Mock(replica_id="r1"), "g", 0.0, ""))
    assert one.entry.attempt_base != one.wait.entry_now().attempt_base
