"""The replica that jumps over runs of equal steps does what one does that takes every step."""

from __future__ import annotations

import math
import random
from itertools import accumulate

import pytest

from cluster.settings import SimSettings
from deployments.engines.sim import CoreLimits, Parts
from loadtest.simulate.engine.replica import SimReplica, SimRequest
from loadtest.simulate.engine.steps import StepTimes
from loadtest.traces import TraceRequest
from tests.loadtest.simulate.plain import Call, Seen, plain_run

BLOCK = 16


def settings(kv_tokens: int, sequences: int) -> SimSettings:
    return SimSettings(
        base_ms=5.0,
        per_token_us=20.0,
        per_kv_token_us=0.5,
        kv_tokens=kv_tokens,
        max_num_seqs=sequences,
        max_num_batched_tokens=max(128, sequences),
        block_size=BLOCK,
    )


def draw_calls(seed: int, gap_s: float, longest: int = 400, *, shared: bool = True) -> list[Call]:
    rnd = random.Random(seed)
    calls: list[Call] = []
    at = 0.0
    for number in range(60):
        at += rnd.expovariate(1 / gap_s)
        prompt = rnd.randint(1, longest)
        family = rnd.randint(0, 3)
        hashes = tuple(1000 * family + i for i in range(prompt // BLOCK)) if shared else ()
        calls.append(Call(at, "add", f"s{number}", prompt, rnd.randint(1, 120), hashes=hashes))
        if rnd.random() < 0.15:
            calls.append(Call(at + rnd.random(), "abort", f"s{rnd.randint(0, number)}"))
        if rnd.random() < 0.1:
            calls.append(Call(at + rnd.random() / 3, "limit", limit=rnd.randint(1, 8)))
    return sorted(calls, key=lambda call: call.at)


class Fast:
    """Drives the replica of the simulator as its event loop does."""

    def __init__(self, engine: SimSettings) -> None:
        self.replica = SimReplica("r", engine, BLOCK)
        self.items: dict[str, SimRequest] = {}
        self.ended: set[str] = set()

    def run(self, calls: list[Call]) -> dict[str, Seen]:
        for call in calls:
            self._steps_until(call.at)
            self._take(call)
            self.replica.begin(call.at)
        self._steps_until(math.inf)
        assert not self.replica.running
        return {name: self._seen(item) for name, item in self.items.items()}

    def _steps_until(self, now: float) -> None:
        while self.replica.ends_at is not None and self.replica.ends_at <= now:
            at = self.replica.ends_at
            over = self.replica.end()
            self.ended |= {item.request_id for item in over.finished}
            for item in [*over.finished, *over.aborted]:
                tokens = item.prior_tokens if item in over.aborted else item.request.output_tokens
                assert len(item.gaps) == max(0, tokens - 1)
            self.replica.begin(at)

    def _take(self, call: Call) -> None:
        if call.kind == "add":
            request = TraceRequest(
                0, call.at, call.prompt_tokens, call.output_tokens, block_ids=call.hashes, block_tokens=BLOCK
            )
            item = self.items[call.name] = SimRequest(call.name, request, "router", call.at)
            self.replica.start(item, call.at)
        elif call.kind == "abort":
            self.replica.abort(call.name, call.at)
        else:
            self.replica.set_limit(call.limit, call.at)

    def _seen(self, item: SimRequest) -> Seen:
        tokens = [] if item.first_token_at is None else list(accumulate(item.gaps, initial=item.first_token_at))
        return Seen(tokens, item.preemptions, item.request_id in self.ended)


def fast_run(engine: SimSettings, calls: list[Call]) -> dict[str, Seen]:
    return Fast(engine).run(calls)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("kv_tokens", "sequences"), [(100_000, 8), (900, 8), (100_000, 64)])
@pytest.mark.parametrize("gap_s", [0.05, 0.4])
def test_jumping_over_runs_changes_nothing(seed: int, kv_tokens: int, sequences: int, gap_s: float) -> None:
    engine = settings(kv_tokens, sequences)
    _same(engine, draw_calls(seed, gap_s))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("kv_tokens", "sequences"), [(100_000, 8), (12_000, 8), (9_000, 3)])
def test_jumping_over_parts_of_long_prompts_changes_nothing(seed: int, kv_tokens: int, sequences: int) -> None:
    """Prompts take up to sixty steps, decodes go on beside them, and requests come, go and are preempted meanwhile."""
    _same(settings(kv_tokens, sequences), draw_calls(seed, 0.4, 8000, shared=False))


def _same(engine: SimSettings, calls: list[Call]) -> None:
    limits = CoreLimits(engine.max_num_seqs, engine.max_num_batched_tokens, engine.kv_tokens, BLOCK)

    plain, fast = plain_run(limits, StepTimes.of(engine), calls), fast_run(engine, calls)

    assert plain.keys() == fast.keys()
    for name, expected in plain.items():
        assert expected.preemptions == fast[name].preemptions
        assert expected.ended == fast[name].ended
        assert fast[name].tokens == pytest.approx(expected.tokens, abs=1e-9)


def test_small_caches_do_preempt_here() -> None:
    """The case above with a small cache is one with preemptions."""
    seen = fast_run(settings(900, 8), draw_calls(1, 0.05))
    assert sum(each.preemptions for each in seen.values()) > 5


@pytest.mark.parametrize("steps", [1, 20, 31, 32, 250])
def test_a_run_is_the_same_as_its_steps_to_the_last_bit(steps: int) -> None:
    times = StepTimes(0.0125, 42e-6, 0.071e-6)
    assert [times.one(7, 5_000 + 7 * step) for step in range(1, steps + 1)] == times.run(7, 5_000, steps)


def test_parts_of_a_prompt_are_the_same_as_their_steps_to_the_last_bit() -> None:
    times = StepTimes(0.0125, 42e-6, 0.071e-6)
    steps = [times.one(107, 5_000 + 7 * step + 300 + 100 * step) for step in range(1, 31)]
    assert steps == times.fill(7, 5_000, Parts(30, 100, 300))


def test_many_steps_of_a_long_prompt_are_one_plan() -> None:
    replica = SimReplica("r", settings(100_000, 8))
    replica.start(SimRequest("a", TraceRequest(0, 0.0, 12_800, 10), "router", 0.0), 0.0)
    replica.begin(0.0)
    replica.end()
    replica.begin(1.0)
    replica.end()
    assert 99 == len(replica.log)


def test_a_killed_replica_gives_back_what_was_delivered() -> None:
    replica = SimReplica("r", settings(100_000, 8))
    item = SimRequest("a", TraceRequest(0, 0.0, 64, 100), "router", 0.0)
    replica.start(item, 0.0)
    replica.begin(0.0)
    at = replica._ends[0]
    lost = replica.kill(at + 3.5 * 0.00502)
    assert lost == [item]
    assert item.prior_tokens == 4
    assert len(item.gaps) == 3
    assert item.last_token_at == pytest.approx(at + sum(item.gaps))
    assert replica.ends_at is None


def test_a_first_token_is_told_once_it_has_come() -> None:
    """Steps behind it are planned together with it."""
    replica = SimReplica("r", settings(100_000, 8))
    item = SimRequest("a", TraceRequest(0, 0.0, 64, 100), "router", 0.0)
    replica.start(item, 0.0)
    replica.begin(0.0)
    at = replica._ends[0]
    assert len(replica._ends) > 1
    assert [] == replica.report(0.9 * at)[0]
    assert item.first_token_at is None
    assert ["a"] == replica.report(at)[0]
    assert at == item.first_token_at


def test_a_replica_killed_before_a_first_token_has_delivered_none() -> None:
    replica = SimReplica("r", settings(100_000, 8))
    item = SimRequest("a", TraceRequest(0, 0.0, 64, 100), "router", 0.0)
    replica.start(item, 0.0)
    replica.begin(0.0)
    assert [item] == replica.kill(0.9 * replica._ends[0])
    assert (0, 0, None) == (item.prior_tokens, len(item.gaps), item.first_token_at)


def test_much_fresh_prefill_is_told_at_the_end_of_its_step() -> None:
    """So nothing is planned behind that step."""
    replica = SimReplica("r", settings(100_000, 8))
    prompt = replica.windows.prefill_tokens
    replica.start(SimRequest("a", TraceRequest(0, 0.0, prompt, 100), "router", 0.0), 0.0)
    told, now = False, 0.0
    while not replica.report(now)[0]:
        replica.begin(now)
        now = replica.ends_at or now
        told = replica.end().report
    assert (True, [now]) == (told, replica._ends)


def test_a_request_that_went_on_elsewhere_does_not_end_here() -> None:
    replica = SimReplica("r", settings(100_000, 8))
    gone, stays = (
        SimRequest(name, TraceRequest(0, 0.0, 32, tokens), "router", 0.0)
        for name, tokens in zip("ab", (50, 80), strict=True)
    )
    replica.start(gone, 0.0)
    replica.start(stays, 0.0)
    replica.begin(0.0)
    (turn, *_), _ = sorted(replica._ending, key=lambda each: each[:2])
    replica.abort(gone.request_id, replica._ends[0])
    assert [gone] == replica.end().aborted
    # Its last token comes in the turn of the same number there.
    other = SimReplica("s", settings(100_000, 8))
    other.start(SimRequest("c", TraceRequest(2, 0.0, 32, gone.prior_tokens), "router", 0.0), 1.0)
    while other.running:
        other.begin(other.ends_at or 1.0)
        other.end()
    other.start(gone, 2.0)
    other.begin(2.0)
    assert turn == other._ending[0][0]
    finished: list[SimRequest] = []
    while replica.running:
        replica.begin(replica.ends_at or 2.0)
        finished += replica.end().finished

    assert [stays] == finished
