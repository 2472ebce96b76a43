"""The batch policy, alone and closed around an engine in virtual time."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.control.batch_policy import FastBounds, FastDecision, FastState, decide, rules_under
from cluster.control.snapshot import BatchSnapshot
from cluster.control.step_fit import StepFit
from cluster.control.step_model import BatchMix, StepModel, StepSample
from penstock.values.steps import Relief
from tests.cluster.control.engines import VirtualEngine

MODEL = StepModel(a=0.013, b=45e-6, g=0.08e-6)
BOUNDS = FastBounds(1, 256)


def samples(
    sequences: int = 64, model: StepModel = MODEL, prompt: int = 600, every: int = 3, count: int = 60
) -> tuple[StepSample, ...]:
    """Make steps of a full batch, some of which compute a prompt too."""
    found = []
    for number in range(count):
        tokens = sequences + (0 if number % every else prompt)
        kv_tokens = sequences * 1500
        found.append(StepSample(model.predict(tokens, kv_tokens), tokens, kv_tokens, sequences))
    return tuple(found)


SEEN = BatchSnapshot(at=0.0, limit=64, running=64, samples=samples(), kv_usage=0.3, kv_tokens=400_000, model=MODEL)

steps = st.builds(StepSample, st.floats(1e-4, 1), st.integers(1, 4000), st.integers(0, 10**6), st.integers(1, 300))
snapshots = st.builds(
    BatchSnapshot, at=st.just(0.0), limit=st.integers(1, 256), running=st.integers(0, 300),
    samples=st.one_of(
        st.just(()), st.lists(steps, min_size=20, max_size=40).map(tuple), st.builds(samples, st.integers(1, 256))
    ),
    kv_usage=st.floats(0, 1), kv_tokens=st.integers(0, 10**6), step_tokens=st.integers(0, 8192),
    preemptions=st.integers(0, 5),
    model=st.one_of(st.none(), st.builds(StepModel, st.floats(0, 0.1), st.floats(0, 1e-3), st.floats(0, 1e-6))),
    interactive_arrivals=st.floats(0, 100), interactive_running=st.integers(0, 300),
)  # fmt: skip
states = st.builds(FastState, trim=st.floats(0.5, 1))


def reasons(decision: FastDecision) -> dict[str, str]:
    return {step.name: step.reason for step in decision.steps}


@pytest.mark.slow
@given(seen=snapshots, state=states, slo=st.floats(1e-4, 1), smallest=st.integers(1, 8), size=st.integers(0, 300))
def test_no_limit_leaves_its_bounds(
    seen: BatchSnapshot, state: FastState, slo: float, smallest: int, size: int
) -> None:
    bounds = FastBounds(smallest, smallest + size)
    decision = decide(slo, bounds, seen, state)

    assert bounds.smallest <= decision.limit <= bounds.largest
    assert 0 <= decision.batch_class_limit <= decision.limit
    assert 0.5 <= decision.state.trim <= 1
    assert decision.limit == decision.steps[-1].value or decision.steps[-1].name == "batch_class"


@pytest.mark.slow
@given(seen=snapshots, state=states, one=st.floats(1e-3, 1), other=st.floats(1e-3, 1))
def test_a_looser_slo_never_gives_a_smaller_limit(
    seen: BatchSnapshot, state: FastState, one: float, other: float
) -> None:
    tight, loose = (decide(slo, BOUNDS, seen, state) for slo in sorted((one, other)))

    assert tight.limit <= loose.limit or tight.given_up


@pytest.mark.slow
@given(seen=snapshots, state=states, slo=st.floats(1e-4, 1))
def test_one_tick_moves_the_limit_a_little(seen: BatchSnapshot, state: FastState, slo: float) -> None:
    limit = decide(slo, BOUNDS, seen, state).limit

    assert limit >= seen.limit - max(1, 0.2 * seen.limit) - 0.5
    if seen.model is not None:
        assert limit <= seen.limit + max(1, 0.5 * seen.limit) + 0.5


def test_the_kv_cache_bounds_the_batch() -> None:
    seen = dataclasses.replace(SEEN, limit=12, kv_tokens=15_000)
    decision = decide(1.0, BOUNDS, seen, FastState())

    # Sequences of 1,500 tokens.
    assert 9 == decision.feed_forward
    assert "90% of 15000 KV tokens" in reasons(decision)["kv"]


def test_a_step_takes_no_more_of_prompts_than_the_engine_lets_it() -> None:
    """Where every step has a piece of a prompt already, a larger batch waits longer for its prompts, and steps are as
    long as before.
    """
    busy = samples(sequences=32, prompt=480, every=1)
    seen = dataclasses.replace(SEEN, limit=32, running=32, samples=busy)
    full_step_s = MODEL.predict(512, 64 * 1500)
    unbounded = decide(full_step_s / 0.98, BOUNDS, seen, FastState()).feed_forward
    bounded = decide(full_step_s / 0.98, BOUNDS, dataclasses.replace(seen, step_tokens=512), FastState()).feed_forward

    assert unbounded is not None
    assert bounded is not None
    assert 50 > unbounded
    assert 63 <= bounded


def test_preemptions_trim_down() -> None:
    decision = decide(0.1, BOUNDS, dataclasses.replace(SEEN, preemptions=2), FastState())

    assert pytest.approx(0.9) == decision.state.trim


def test_the_trim_rests_while_the_batch_drains() -> None:
    """A lowered limit shows only once the batch is down there; until then cutting again would cut too much."""
    decision = decide(0.02, BOUNDS, dataclasses.replace(SEEN, limit=32), FastState(trim=0.9))

    assert 0.9 == decision.state.trim
    assert "kept: too few steps with the batch at its limit" == reasons(decision)["trim"]


def test_the_trim_rests_while_the_limit_does_not_bind() -> None:
    idle = dataclasses.replace(SEEN, running=3, samples=samples(sequences=5))
    for slo in (0.001, 1.0):
        assert 0.8 == decide(slo, BOUNDS, idle, FastState(trim=0.8)).state.trim


def test_over_the_slo_the_trim_goes_down_and_well_below_it_comes_back() -> None:
    assert pytest.approx(0.9) == decide(0.045, BOUNDS, SEEN, FastState()).state.trim
    assert pytest.approx(0.82) == decide(0.1, BOUNDS, SEEN, FastState(trim=0.8)).state.trim


def test_a_model_that_moved_takes_half_of_the_trim_with_it() -> None:
    slower = StepModel(MODEL.a * 1.5, MODEL.b * 1.5, MODEL.g * 1.5)
    seen = dataclasses.replace(SEEN, model=slower)
    decision = decide(0.055, BOUNDS, seen, FastState(trim=0.6, model=MODEL))

    assert pytest.approx(0.8) == decision.state.trim


def test_overload_is_flagged_at_the_smallest_batch() -> None:
    seen = dataclasses.replace(SEEN, limit=1, running=1, samples=samples(sequences=1))

    assert decide(0.02, BOUNDS, seen, FastState()).overloaded
    assert not decide(0.06, BOUNDS, seen, FastState()).overloaded


def test_batch_work_leaves_room_for_interactive_arrivals() -> None:
    seen = dataclasses.replace(SEEN, interactive_arrivals=4.0, interactive_running=20)
    decision = decide(0.02, BOUNDS, seen, FastState())

    assert decision.limit - 20 - 9 == decision.batch_class_limit


def test_a_disturbed_machine_does_not_take_the_whole_batch() -> None:
    """With every tenth step held up no batch holds the SLO; the smallest one would only serve nobody."""
    disturbed = tuple(
        sample._replace(seconds=sample.seconds * (10 if number % 10 == 0 else 1))
        for number, sample in enumerate(samples(every=1000, count=200))
    )
    seen, state = dataclasses.replace(SEEN, samples=disturbed), FastState()
    undisturbed = MODEL.batch_for_itl(0.98 * 0.03, BatchMix(1, 1500))
    for _ in range(60):
        decision = decide(0.03, BOUNDS, seen, state)
        seen, state = dataclasses.replace(seen, limit=decision.limit), decision.state

    assert "disturbed" in reasons(decision)
    assert undisturbed / 7 <= decision.limit <= undisturbed / 2


# --- closed loop ------------------------------------------------------------------------------------------------------


def control(
    engine: VirtualEngine, slo: float, ticks: int, fit: StepFit | None, state: FastState | None = None
) -> tuple[list[int], FastState]:
    """Run the loop; `engine.take()` then tells what it led to."""
    engine.take_nothing()
    state = state or FastState()
    limits = []
    for _ in range(ticks):
        decision = decide(slo, BOUNDS, engine.tick(fit), state)
        engine.limit, state = decision.limit, decision.state
        limits.append(decision.limit)
    return limits, state


def best_static(slo: float, prompt: int, output: int) -> tuple[int, float]:
    """Return the static limit that holds the SLO with the most tokens per second, and those."""
    found = (0, 0.0)
    for limit in (8, 16, 24, 32, 40, 48, 56, 64, 80):
        static = VirtualEngine(MODEL, prompt=prompt, output=output, seed=7)
        static.limit = limit
        static.tick(None, 10.0)
        static.take_nothing()
        static.tick(None, 30.0)
        p95, throughput = static.take()
        if p95 <= slo:
            found = max(found, (limit, throughput), key=lambda each: each[1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("slo", "prompt"), [(0.05, 400), (0.025, 100), (0.03, 200)])
def test_overload_is_held_at_the_slo_with_nearly_all_of_the_best_throughput(slo: float, prompt: int) -> None:
    engine = VirtualEngine(MODEL, prompt=prompt, output=150)
    fit = StepFit()
    _, state = control(engine, slo, 60, fit)
    limits, _ = control(engine, slo, 60, fit, state)
    p95, throughput = engine.take()
    best_limit, best = best_static(slo, prompt, 150)

    assert p95 <= slo
    assert throughput >= 0.9 * best
    # A steady load has a steady limit, as far as its own randomness allows.
    usual = sorted(limits)[6:-6]
    assert usual[-1] - usual[0] <= max(3, 0.5 * best_limit)


@pytest.mark.slow
def test_a_looser_slo_gives_more_throughput_and_a_tighter_one_takes_it_back() -> None:
    engine = VirtualEngine(MODEL, prompt=100, output=150)
    fit = StepFit()
    found = []
    state = FastState()
    for slo in (0.02, 0.04, 0.02):
        _, state = control(engine, slo, 60, fit, state)
        _, state = control(engine, slo, 30, fit, state)
        p95, throughput = engine.take()
        found.append(throughput)
        assert p95 <= slo

    assert found[1] > 1.3 * found[0]
    assert found[2] < 1.1 * found[0]


def test_without_a_model_the_loop_still_holds_the_slo() -> None:
    engine = VirtualEngine(MODEL, prompt=100, output=150)
    _, state = control(engine, 0.03, 60, None)
    control(engine, 0.03, 30, None, state)

    assert engine.take()[0] <= 0.03


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_a_model_that_is_wrong_by_a_third_holds_the_slo_too(factor: float) -> None:
    """What is measured at the present batch counts, whatever the model says of it."""
    engine = VirtualEngine(MODEL, prompt=100, output=150)
    wrong = StepModel(MODEL.a * factor, MODEL.b / factor, MODEL.g * factor)
    state, slo = FastState(), 0.03
    for tick in range(120):
        if tick == 60:
            engine.take_nothing()
        decision = decide(slo, BOUNDS, dataclasses.replace(engine.tick(None), model=wrong), state)
        engine.limit, state = decision.limit, decision.state
    p95, throughput = engine.take()

    assert p95 <= slo
    assert throughput >= 0.85 * best_static(slo, 100, 150)[1]


@pytest.mark.slow
def test_a_longer_context_lowers_the_limit() -> None:
    engine = VirtualEngine(MODEL, prompt=200, output=150)
    fit = StepFit()
    limits, state = control(engine, 0.05, 60, fit)
    engine.prompt = 700
    _, state = control(engine, 0.05, 40, fit, state)
    longer, _ = control(engine, 0.05, 40, fit, state)

    assert longer[-1] < 0.7 * limits[-1]
    assert engine.take()[0] <= 0.05


@pytest.mark.slow
def test_an_idle_replica_keeps_its_limit_and_its_trim() -> None:
    engine = VirtualEngine(MODEL, prompt=400, output=150)
    fit = StepFit()
    _, state = control(engine, 0.05, 60, fit)
    engine.offered = 0
    _, before = control(engine, 0.05, 60, fit, state)
    limits, after = control(engine, 0.05, 120, fit, before)

    assert before == after
    assert limits[0] == limits[-1]


@pytest.mark.slow
def test_prompts_that_are_slower_than_the_slo_do_not_starve_the_batch() -> None:
    """A step with a piece of a prompt takes 36 ms here in any batch, and the SLO is 25."""
    engine = VirtualEngine(MODEL, prompt=500, output=60)
    fit = StepFit()
    limits, state = control(engine, 0.025, 120, fit)
    _, throughput = engine.take()
    decision = decide(0.025, BOUNDS, engine.tick(fit), state)
    full = VirtualEngine(MODEL, prompt=500, output=60)
    full.limit = BOUNDS.largest
    full.tick(None, 60.0)

    assert decision.given_up
    assert "out of reach" in reasons(decision)["given_up"]
    assert throughput >= 0.25 * full.take()[1]
    assert limits[-1] >= 8


def test_an_slo_below_every_decode_is_not_given_up_for_prompts() -> None:
    decision = decide(0.012, BOUNDS, SEEN, FastState())

    assert not decision.given_up
    assert decision.limit < SEEN.limit


def test_latency_is_the_first_that_a_pool_gives_up() -> None:
    """Whatever is given up, batches go to the edge of the SLO."""
    usual, edge = (
        decide(0.06, BOUNDS, dataclasses.replace(SEEN, limit=20, running=20), FastState(), rules_under(relief))
        for relief in (Relief.NONE, Relief.LATENCY)
    )

    assert usual == decide(0.06, BOUNDS, dataclasses.replace(SEEN, limit=20, running=20), FastState())
    assert usual.steps[0].value < edge.steps[0].value
    assert 1 == len({rules_under(relief) for relief in Relief if relief is not Relief.NONE})
