"""The attempt table: windows, fencing, parking and forgetting."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pytest

from cluster.clock import ManualClock
from cluster.errors import EngineDeadError, EngineRequestError
from cluster.models import EngineStats, GenerationSpec, SequenceEnd, Windows
from deployments.engines.base import EngineIdentity, TokenSink
from deployments.replica.attempts import AttemptTable, Refused
from penstock.models import FinishReason, SamplingParams
from tests.deployments.replica.test_output_log import Outlet, deltas
from tests.support.waiting import until


class ManualEngine:
    """An engine whose tokens the test makes."""

    def __init__(self) -> None:
        self.sinks: dict[str, TokenSink] = {}
        self.released: list[bool] = []
        self.refuse = False
        self.dead = False
        self.never = asyncio.Event()
        """What a submit waits for while `slow`."""
        self.slow = False

    async def start(self) -> EngineIdentity:
        raise NotImplementedError

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        if self.refuse:
            raise EngineRequestError("no")
        if self.dead:
            raise EngineDeadError("dead")
        if self.slow:
            await self.never.wait()
        self.sinks[sequence_id] = sink

    async def abort(
        self, sequence_ids: Sequence[str], reason: str = "cancelled", *, release_text: bool = False
    ) -> None:
        self.released.append(release_text)
        for sequence_id in sequence_ids:
            if (sink := self.sinks.pop(sequence_id, None)) is not None:
                sink.on_end(SequenceEnd(FinishReason(reason)))

    async def set_batch_limits(self, sequences: int | None, tokens: int | None) -> tuple[int, int]:
        raise NotImplementedError

    def stats(self) -> EngineStats:
        return EngineStats()

    def live_ids(self) -> Collection[str]:
        return tuple(self.sinks)

    async def check_health(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class Case:
    """A table with everything around it."""

    def __init__(
        self, *, sequences: int = 2, prefill: int = 100, retained: int = 1 << 20, resumes_penalties: bool = True
    ) -> None:
        self.engine = ManualEngine()
        self.clock = ManualClock()
        self.ends: list[SequenceEnd] = []
        self.outlet = Outlet()
        self.reports: list[tuple[str, ...]] = []
        """What there was to report each time that a report was asked for."""
        self.table = AttemptTable(
            self.engine,
            Windows(sequences, 10_000, prefill),
            self.clock,
            attach_grace_s=5.0,
            retained_bytes=retained,
            on_end=lambda log: self.ends.append(log.end) if log.end is not None else None,
            on_prefilled=lambda: self.reports.append(tuple(self.table.prefilled)),
            resumes_penalties=resumes_penalties,
        )

    async def start(
        self,
        name: str,
        tokens: int = 3,
        attempt: str = "a.1",
        *,
        alone: bool = False,
        time_left_s: float | None = None,
    ) -> tuple[Refused, str] | None:
        spec = GenerationSpec(list(range(tokens)), SamplingParams(max_tokens=8))
        return await self.table.start(
            name, attempt, spec, self.outlet, hash(name) & 0xFFFF, alone=alone, time_left_s=time_left_s
        )


@pytest.fixture
def case() -> Case:
    return Case()


async def test_a_start_beyond_the_sequence_window_is_refused(case: Case) -> None:
    assert await case.start("one") is None
    assert await case.start("two") is None

    refusal = await case.start("three")
    assert refusal is not None
    assert Refused.WINDOW_FULL is refusal[0]
    assert "three#a.1" not in case.engine.sinks


async def test_a_slot_is_free_again_only_when_the_engine_says_so(case: Case) -> None:
    await case.start("one")
    await case.start("two")
    case.engine.sinks["one#a.1"].on_tokens([1], "x", None)
    assert 2 == case.table.sequences

    case.engine.sinks["one#a.1"].on_end(SequenceEnd(FinishReason.STOP))
    assert await case.start("three") is None


async def test_outstanding_prefill_tokens_are_bounded_but_one_large_prompt_may_go_alone(case: Case) -> None:
    assert await case.start("large", tokens=500) is None
    refusal = await case.start("small", tokens=1)
    assert refusal is not None
    assert Refused.WINDOW_FULL is refusal[0]

    case.engine.sinks["large#a.1"].on_tokens([1], "x", None)
    assert await case.start("small", tokens=1) is None
    assert ("large",) == case.table.take_prefilled()


async def test_who_runs_alone_waits_for_others_and_keeps_them_out_until_it_has_output() -> None:
    case = Case(sequences=9)
    await case.start("one")
    for name, alone in (("suspect", True), ("other", False)):
        refusal = await case.start(name, alone=alone)
        assert (Refused.WINDOW_FULL if alone else None) == (refusal and refusal[0])
    for name in ("one", "other"):
        case.engine.sinks[f"{name}#a.1"].on_tokens([1], "x", None)
    # Those that have output may go on beside it.
    assert await case.start("suspect", alone=True) is None
    assert await case.start("late") is not None
    assert await case.start("another", alone=True) is not None
    case.engine.sinks["suspect#a.1"].on_tokens([1], "x", None)
    assert await case.start("late") is None


async def test_who_ran_alone_keeps_nobody_out_when_it_ended_or_was_refused() -> None:
    case = Case(sequences=9)
    assert await case.start("suspect", alone=True) is None
    await case.table.abort([("suspect", "a.1")])
    case.engine.refuse = True
    assert await case.start("wrong", alone=True) is not None
    case.engine.refuse = False
    assert await case.start("late") is None


async def test_a_refused_request_leaves_nothing_behind(case: Case) -> None:
    case.engine.refuse = True
    refusal = await case.start("one")

    assert refusal == (Refused.INVALID, "no")
    assert (0, 0, ()) == (case.table.sequences, case.table.prefill_tokens, case.table.progress())
    assert case.table.idle.is_set()


async def test_a_start_whose_link_ends_while_the_engine_takes_it_leaves_nothing_behind(case: Case) -> None:
    case.engine.slow = True
    starting = asyncio.create_task(case.start("one", alone=True))
    await until(lambda: case.table.sequences == 1)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert (0, 0, ()) == (case.table.sequences, case.table.prefill_tokens, case.table.progress())
    assert case.table.idle.is_set()
    case.engine.slow = False
    assert await case.start("two") is None


@pytest.mark.parametrize(
    ("resumes", "sampling", "reported"),
    [
        (True, {"presence_penalty": 0.5}, 1),
        (False, {"presence_penalty": 0.5}, -1),
        (False, {"frequency_penalty": -0.5}, -1),
        (False, {"repetition_penalty": 1.5}, 1),
    ],
    ids=str,
)
async def test_what_its_engine_could_not_resume_is_not_offered_to_give_way(
    resumes: bool, sampling: dict[str, float], reported: int
) -> None:
    case = Case(resumes_penalties=resumes)
    spec = GenerationSpec([1, 2, 3], SamplingParams(8, **sampling))  # type: ignore[arg-type]
    assert await case.table.start("one", "a.1", spec, case.outlet, 1) is None
    case.engine.sinks["one#a.1"].on_tokens([4], "x", None)

    assert (("one", "a.1", reported),) == case.table.progress()


async def test_the_same_start_again_does_not_run_twice(case: Case) -> None:
    await case.start("one")
    case.engine.sinks["one#a.1"].on_tokens([4], "x", None)
    case.outlet.frame()

    assert await case.start("one") is None
    assert 1 == case.table.sequences
    assert [4] == deltas(case.outlet.frame())[0][2]


async def test_another_attempt_of_the_same_request_never_gets_its_output(case: Case) -> None:
    await case.start("one", attempt="a.1")

    refusal = case.table.attach("one", "a.2", Outlet(), 1, 0)
    assert refusal is not None
    assert Refused.UNKNOWN is refusal[0]


async def test_parked_output_goes_on_and_another_router_takes_all_of_it(case: Case) -> None:
    await case.start("one")
    sink = case.engine.sinks["one#a.1"]
    sink.on_tokens([1], "a", None)
    case.outlet.frame()
    assert 1 == case.table.park(case.outlet)
    sink.on_tokens([2], "b", None)

    other = Outlet()
    assert case.table.attach("one", "a.1", other, 5, 1) is None
    sink.on_tokens([3], "c", None)
    assert [(5, 1, [2, 3], "bc")] == deltas(other.frame())
    assert 0 == case.table.parked


async def test_the_old_receiver_learns_that_another_took_over(case: Case) -> None:
    await case.start("one")
    assert case.table.attach("one", "a.1", Outlet(), 5, 0) is None
    assert [hash("one") & 0xFFFF] == case.outlet.detached


@pytest.mark.parametrize("taken_over", [False, True])
async def test_a_deadline_ends_an_attempt_whoever_takes_its_output(case: Case, taken_over: bool) -> None:
    await case.start("one", time_left_s=3.0)
    await case.start("endless")
    if taken_over:
        case.table.park(case.outlet)
        case.table.attach("one", "a.1", Outlet(), 5, 0)
    case.clock.advance(2.9)
    await case.table.sweep()
    assert not case.ends
    case.clock.advance(0.2)
    await case.table.sweep()
    assert [FinishReason.DEADLINE] == [end.reason for end in case.ends]


async def test_only_what_nobody_goes_on_with_gets_the_text_that_was_held_back(case: Case) -> None:
    await case.start("one", time_left_s=1.0)
    await case.start("two")
    case.clock.advance(1.5)
    await case.table.sweep()
    assert [True] == case.engine.released
    await case.table.abort([("two", "a.1")], final=True)
    await case.start("three")
    await case.table.abort([("three", "a.1")])
    await case.start("four")
    await case.table.move_all()
    assert [True, True, False, False] == case.engine.released


async def test_parked_work_is_aborted_when_the_grace_is_over(case: Case) -> None:
    await case.start("one")
    case.table.park(case.outlet)
    case.clock.advance(4.9)
    await case.table.sweep()
    assert 1 == case.table.sequences

    case.clock.advance(0.2)
    await case.table.sweep()
    assert (0, 0) == (case.table.sequences, case.table.retained)
    assert [FinishReason.CANCELLED] == [end.reason for end in case.ends]


async def test_while_others_come_back_parked_work_is_waited_for() -> None:
    case = Case(sequences=50, prefill=1_000)
    names = [f"n{number}" for number in range(40)]
    for name in names:
        await case.start(name)
    case.table.park(case.outlet)
    case.clock.advance(4.5)
    for name in names[:20]:
        assert case.table.attach(name, "a.1", Outlet(), 5, 0) is None
        case.clock.advance(0.9)
        await case.table.sweep()
        assert 40 == case.table.sequences
    case.clock.advance(4.2)
    await case.table.sweep()
    assert 20 == case.table.sequences


async def test_parked_work_is_not_waited_for_for_ever() -> None:
    case = Case(sequences=100, prefill=2_000)
    for number in range(80):
        await case.start(f"n{number}")
    case.table.park(case.outlet)
    for number in range(80):
        case.table.attach(f"n{number}", "a.1", Outlet(), 5, 0)
        case.clock.advance(0.9)
        await case.table.sweep()
    # 60 s are the end, 0.9 s each.
    assert 67 == case.table.sequences


async def test_a_finished_log_is_its_routers_and_is_kept_for_the_grace_without_one(case: Case) -> None:
    """Other choices of the request may run for long, and who takes over when the router dies needs this one too."""
    await case.start("one")
    case.engine.sinks["one#a.1"].on_end(SequenceEnd(FinishReason.STOP))
    case.outlet.frame()
    case.clock.advance(60.0)
    await case.table.sweep()
    case.table.park(case.outlet)
    case.clock.advance(4.0)
    await case.table.sweep()
    second = Outlet()
    assert case.table.attach("one", "a.1", second, 5, 0) is None
    assert 1 == len(second.frame().ends)
    case.clock.advance(60.0)
    await case.table.sweep()
    assert 1 == case.table.retained

    case.table.park(second)
    case.clock.advance(4.9)
    await case.table.sweep()
    assert 1 == case.table.retained

    case.clock.advance(0.2)
    await case.table.sweep()
    assert 0 == case.table.retained


async def test_an_end_that_a_connected_router_was_not_sent_yet_is_not_dropped(case: Case) -> None:
    await case.start("one")
    case.engine.sinks["one#a.1"].on_end(SequenceEnd(FinishReason.STOP))
    case.clock.advance(60.0)
    await case.table.sweep()
    assert 1 == case.table.retained

    case.table.park(case.outlet)
    case.clock.advance(5.1)
    await case.table.sweep()
    assert 0 == case.table.retained


async def test_what_nobody_came_back_for_is_counted(case: Case) -> None:
    """Not what a router has and only did not acknowledge."""
    for name in ("parked", "held"):
        await case.start(name)
        if name == "parked":
            case.table.park(case.outlet)
        case.engine.sinks.pop(f"{name}#a.1").on_end(SequenceEnd(FinishReason.STOP, gpu_seconds=0.5))
    case.outlet.frame()
    case.clock.advance(5.1)
    await case.table.sweep()
    assert (1, 1, 0.5) == (case.table.retained, case.table.orphans, case.table.orphaned_gpu_s)


async def test_sequences_of_the_engine_that_nobody_knows_are_stopped(case: Case) -> None:
    await case.start("one")
    case.engine.sinks["lost#a.1"] = lost = LoneSink()
    # The engine's own, such as a look at its health.
    case.engine.sinks["first-token"] = LoneSink()
    await case.table.sweep()
    assert not lost.ends
    await case.table.sweep()
    assert [FinishReason.CANCELLED] == lost.ends
    assert {"one#a.1", "first-token"} == set(case.engine.sinks)
    assert case.table.orphans == 1


class LoneSink:
    """A sink outside of any table."""

    def __init__(self) -> None:
        self.ends: list[FinishReason] = []

    def on_prompt_logprobs(self, *_: object) -> None: ...

    def on_tokens(self, *_: object) -> None:
        raise AssertionError

    def on_end(self, end: SequenceEnd) -> None:
        self.ends.append(end.reason)


async def test_an_acknowledged_log_is_dropped_at_once_but_never_a_running_one(case: Case) -> None:
    await case.start("one")
    case.table.acknowledge("one", "a.1")
    assert 1 == case.table.sequences

    case.engine.sinks["one#a.1"].on_end(SequenceEnd(FinishReason.STOP))
    case.table.acknowledge("one", "a.1")
    assert 0 == case.table.retained


async def test_retained_output_is_bounded_in_bytes() -> None:
    case = Case(sequences=100, prefill=10_000, retained=20_000)
    for number in range(50):
        await case.start(str(number))
        sink = case.engine.sinks[f"{number}#a.1"]
        for token in range(20):
            sink.on_tokens([token], "x", None)
        case.outlet.frame()
        sink.on_end(SequenceEnd(FinishReason.STOP))
        case.outlet.frame()

    assert 0 < case.table.retained < 10


async def test_a_draining_replica_takes_no_new_work(case: Case) -> None:
    case.table.draining = True
    refusal = await case.start("one")
    assert refusal is not None
    assert Refused.DRAINING is refusal[0]


async def test_room_in_the_prefill_window_is_reported_when_it_is_worth_a_call() -> None:
    """A quarter of the window at a time: until the queue hears of it, it takes the room as used."""
    case = Case(sequences=10, prefill=100)
    for name, tokens in (("a", 10), ("b", 15), ("c", 10), ("d", 30)):
        assert await case.start(name, tokens) is None
    for name in "abcd":
        case.engine.sinks[f"{name}#a.1"].on_tokens([1], "x", None)
        case.engine.sinks[f"{name}#a.1"].on_tokens([2], "y", None)

    assert case.reports == [("a", "b"), ("a", "b", "c", "d")]
    assert case.table.take_prefilled() == ("a", "b", "c", "d")


async def test_a_dead_engine_is_not_asked_to_end_its_attempts(case: Case) -> None:
    """They end with an error, their slots are free, and nothing that the engine may still say reaches anybody."""
    await case.start("one")
    sink = case.engine.sinks["one#a.1"]
    sink.on_tokens([7, 8], "ab", None)
    assert 1 == case.table.fail_all("the engine hangs")

    sink.on_tokens([9], "c", None)
    sink.on_end(SequenceEnd(FinishReason.STOP))
    frame = case.outlet.frame()
    assert [(0, [7, 8], "ab")] == [delta[1:] for delta in deltas(frame)]
    [end] = frame.ends
    assert (2, "the engine hangs") == (end.output_tokens, end.error)
    assert (0, True) == (case.table.sequences, case.table.idle.is_set())
    assert [FinishReason.ERROR] == [ended.reason for ended in case.ends]
    refusal = await case.start("two")
    assert refusal is not None
    assert Refused.DRAINING is refusal[0]


async def test_a_start_on_a_dead_engine_is_refused_for_another_replica_to_take(case: Case) -> None:
    case.engine.dead = True
    refusal = await case.start("one")
    assert refusal is not None
    assert Refused.DRAINING is refusal[0]
    assert (0, 0) == (case.table.sequences, case.table.prefill_tokens)
    assert case.table.draining
