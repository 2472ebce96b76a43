"""The replica that jumps over runs of equal steps does what one does that takes every step."""

from __future__ import annotations

import math
import random

import pytest

from cluster.settings import SimSettings
from deployments.engines.sim import CoreLimits
from loadtest.simulate.replica import Running, SimReplica
from loadtest.simulate.steps import StepTimes
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


def draw_calls(seed: int, gap_s: float) -> list[Call]:
    rnd = random.Random(seed)
    calls: list[Call] = []
    at = 0.0
    for number in range(60):
        at += rnd.expovariate(1 / gap_s)
        prompt = rnd.randint(1, 400)
        family = rnd.randint(0, 3)
        hashes = tuple(1000 * family + i for i in range(prompt // BLOCK))
        calls.append(Call(at, "add", f"s{number}", prompt, rnd.randint(1, 120), hashes=hashes))
        if rnd.random() < 0.15:
            calls.append(Call(at + rnd.random(), "abort", f"s{rnd.randint(0, number)}"))
        if rnd.random() < 0.1:
            calls.append(Call(at + rnd.random() / 3, "limit", limit=rnd.randint(1, 8)))
    return sorted(calls, key=lambda call: call.at)


def fast_run(engine: SimSettings, calls: list[Call]) -> dict[str, Seen]:
    replica = SimReplica("r", engine, BLOCK)
    seen: dict[str, Seen] = {}
    items: dict[str, Running] = {}
    left = list(calls)

    def end() -> None:
        for item in (over := replica.end()).finished:
            seen[item.request_id].ended = True
        for item in [*over.finished, *over.aborted]:
            assert len(item.gaps) == max(0, replica_tokens(item) - 1)

    def replica_tokens(item: Running) -> int:
        return item.request.output_tokens if seen[item.request_id].ended else item.prior_tokens

    while left or replica.ends_at is not None:
        now = left[0].at if left else math.inf
        while replica.ends_at is not None and replica.ends_at <= now:
            at = replica.ends_at
            end()
            if not left or left[0].at > at:
                replica.begin(at)
            else:
                now = at
                break
        if not left:
            continue
        call = left.pop(0)
        if call.kind == "add":
            blocks = tuple(call.hashes)
            request = TraceRequest(
                len(items), call.at, call.prompt_tokens, call.output_tokens, block_ids=blocks, block_tokens=BLOCK
            )
            items[call.name] = Running(call.name, request, "router", call.at)
            seen[call.name] = Seen()
            replica.start(items[call.name], call.at)
        elif call.kind == "abort":
            replica.abort(call.name, call.at)
        else:
            replica.set_limit(call.limit, call.at)
        replica.begin(call.at)
    for name, item in items.items():
        first = [] if item.first_token_at is None else [item.first_token_at]
        seen[name].tokens = first
        for gap in item.gaps:
            seen[name].tokens.append(seen[name].tokens[-1] + gap)
        seen[name].preemptions = item.preemptions
    assert not replica.running
    return seen


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("kv_tokens", "sequences"), [(100_000, 8), (900, 8), (100_000, 64)])
@pytest.mark.parametrize("gap_s", [0.05, 0.4])
def test_jumping_over_runs_changes_nothing(seed: int, kv_tokens: int, sequences: int, gap_s: float) -> None:
    engine = settings(kv_tokens, sequences)
    calls = draw_calls(seed, gap_s)
    limits = CoreLimits(sequences, engine.max_num_batched_tokens, kv_tokens, BLOCK)

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


def test_a_run_is_the_same_as_its_steps_to_the_last_bit() -> None:
    times = StepTimes(0.0125, 42e-6, 0.071e-6)
    assert times.run(7, 5_000, 50) == [times.one(7, 5_000 + 7 * step) for step in range(1, 51)]


def test_a_killed_replica_gives_back_what_was_delivered() -> None:
    replica = SimReplica("r", settings(100_000, 8))
    item = Running("a", TraceRequest(0, 0.0, 64, 100), "router", 0.0)
    replica.start(item, 0.0)
    replica.begin(0.0)
    at = replica.ends_at or 0.0
    replica.end()
    replica.begin(at)
    lost = replica.kill(at + 3.5 * 0.00502)
    assert lost == [item]
    assert item.prior_tokens == 4
    assert len(item.gaps) == 3
    assert item.last_token_at == pytest.approx(at + sum(item.gaps))
    assert replica.ends_at is None
