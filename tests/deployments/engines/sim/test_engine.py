from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cluster.clock import ManualClock
from cluster.errors import EngineDeadError, EngineRequestError
from cluster.models import GenerationSpec, ResumeRecord
from cluster.settings import EngineKind, PoolSettings, SimSettings
from deployments.engines.sim import SimEngine
from deployments.engines.sim.engine import step_seconds
from penstock.models import ConstraintKind, FinishReason, SamplingParams, StructuredOutput
from tests.deployments.engines.recorder import Recorder, begin, generate, greedy
from tests.support.waiting import until

PROMPT = (40, 41, 42)


def pool(**sim: object) -> PoolSettings:
    return PoolSettings(engine=EngineKind.SIM, sim=SimSettings(time_scale=0, **sim))  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[SimEngine]:
    made = SimEngine(pool(), None)
    await made.start()
    yield made
    await made.close()


async def test_all_replicas_make_the_same_tokens(engine: SimEngine) -> None:
    other = SimEngine(pool(max_num_seqs=1), None)
    await other.start()
    sampled = GenerationSpec(PROMPT, SamplingParams(30, seed=3, ignore_eos=True))
    assert (await generate(engine, sampled))[0].tokens == (await generate(other, sampled))[0].tokens
    await other.close()


async def test_sampled_sequence_resumes_on_another_replica(engine: SimEngine) -> None:
    sampling = SamplingParams(30, temperature=1.0, seed=3, ignore_eos=True)
    whole, _ = await generate(engine, GenerationSpec(PROMPT, sampling))
    other = SimEngine(pool(), None)
    await other.start()
    resume = ResumeRecord(tuple(whole.tokens[:11]), 11, "")
    rest, _ = await generate(other, GenerationSpec(PROMPT, sampling, resume=resume))
    await other.close()
    assert rest.tokens == whole.tokens[11:]
    assert rest.text == whole.text[11:]


async def test_output_may_end_by_itself_but_not_too_early(tiny_tokenizer: Path) -> None:
    engine = SimEngine(pool(), tiny_tokenizer)
    await engine.start()
    for seed in range(40):
        recorder, end = await generate(engine, GenerationSpec(PROMPT, SamplingParams(600, min_tokens=20, seed=seed)))
        if end.reason is FinishReason.STOP:
            break
    await engine.close()
    assert end.reason is FinishReason.STOP
    assert recorder.tokens[-1] == 1
    assert 20 < len(recorder.tokens) < 600


async def test_dead_engine_ends_its_sequences(engine: SimEngine) -> None:
    _, recorder = await begin(engine, GenerationSpec(PROMPT, greedy(10_000)))
    await recorder.first.wait()
    engine.die()
    assert (await recorder.end()).reason is FinishReason.ERROR
    with pytest.raises(EngineDeadError):
        await engine.check_health()
    with pytest.raises(EngineDeadError):
        await engine.submit("late", GenerationSpec(PROMPT, greedy()), Recorder())


async def test_wedged_engine_is_noticed_once_it_has_work() -> None:
    clock = ManualClock()
    engine = SimEngine(pool(), None, clock=clock)
    await engine.start()
    engine.wedge()
    clock.advance(100)
    await engine.check_health()
    await begin(engine, GenerationSpec(PROMPT, greedy()))
    clock.advance(9)
    await engine.check_health()
    clock.advance(2)
    with pytest.raises(EngineDeadError, match="no step"):
        await engine.check_health()
    # Tests hold engines for as long as a busy machine takes.
    engine._stall_s = math.inf
    await engine.check_health()
    await engine.close()


async def test_after_a_halt_of_its_process_the_missed_steps_do_not_come_all_at_once() -> None:
    clock = ManualClock()
    settings = SimSettings(base_ms=50.0)
    engine = SimEngine(PoolSettings(engine=EngineKind.SIM, sim=settings), None, clock=clock)
    await engine.start()
    _, recorder = await begin(engine, GenerationSpec(PROMPT, greedy(400)))
    await recorder.first.wait()
    clock.advance(10)
    # The step that runs already is not late.
    await until(lambda: len(recorder.tokens) > 1)
    for _ in range(1000):
        await asyncio.sleep(0)
    # Two steps are made up. The clock stands still, so each step after those is a whole one.
    assert len(recorder.tokens) < 10
    await engine.close()


async def test_what_its_blocks_cannot_hold_is_refused_and_does_not_wait_for_ever() -> None:
    engine = SimEngine(pool(kv_tokens=100, block_size=16), None)
    identity = await engine.start()
    assert 96 == identity.model.max_context_tokens
    with pytest.raises(EngineRequestError, match="context of 96"):
        await engine.submit("long", GenerationSpec((40,) * 98, greedy()), Recorder())
    recorder, end = await generate(engine, GenerationSpec((40,) * 90, greedy(50)))
    await engine.close()
    assert (6, FinishReason.LENGTH) == (len(recorder.tokens), end.reason)


async def test_a_preemption_counts_when_it_happens_and_not_at_the_end() -> None:
    engine = SimEngine(pool(kv_tokens=100, block_size=16), None)
    await engine.start()
    seen: list[int] = []
    first = Recorder(lambda: seen.append(engine.stats().preemptions))
    last = Recorder()
    await engine.submit("first", GenerationSpec(tuple(range(40, 70)), greedy(60)), first)
    await engine.submit("last", GenerationSpec(tuple(range(70, 100)), greedy(60)), last)
    await first.end()
    in_time = max(seen)
    await last.end()
    total = engine.stats().preemptions
    await engine.close()

    assert (1, 1) == (in_time, total)


async def test_shares_add_up_to_the_busy_time_also_where_sequences_lose_their_blocks() -> None:
    """One that waits for its blocks is charged for no step of the others."""
    engine = SimEngine(pool(kv_tokens=160, block_size=16), None)
    await engine.start()
    recorders = [Recorder() for _ in range(4)]
    for number, recorder in enumerate(recorders):
        spec = GenerationSpec(tuple(range(40 + number, 70 + number)), greedy(60))
        await engine.submit(f"s{number}", spec, recorder)
    ends = [await recorder.end() for recorder in recorders]
    stats = engine.stats()
    await engine.close()

    assert stats.preemptions > 0
    assert stats.busy_s == pytest.approx(sum(end.gpu_seconds for end in ends), rel=1e-6)
    assert stats.ended_gpu_s == pytest.approx(stats.busy_s, rel=1e-6)
    assert 0.0 == stats.live_gpu_s


async def test_close_ends_sequences_and_may_be_repeated(engine: SimEngine) -> None:
    _, recorder = await begin(engine, GenerationSpec(PROMPT, greedy(10_000)))
    aborted, other = await begin(engine, GenerationSpec(PROMPT, greedy(10_000)))
    engine.wedge()
    aborting = asyncio.create_task(engine.abort([aborted]))
    await asyncio.sleep(0)
    await engine.close()
    await engine.close()
    await asyncio.wait_for(aborting, 60)
    assert recorder.ended
    assert other.ended


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(4, structured=StructuredOutput(ConstraintKind.REGEX, "a+")),
        SamplingParams(4, logit_bias={3: 1.0}),
    ],
)
async def test_what_would_shape_made_up_tokens_is_refused(engine: SimEngine, sampling: SamplingParams) -> None:
    with pytest.raises(EngineRequestError):
        await engine.submit("shaped", GenerationSpec(PROMPT, sampling), Recorder())


async def test_the_answer_of_the_settings_comes_whatever_form_is_asked_for(tiny_tokenizer: Path) -> None:
    engine = SimEngine(pool(answer='{"a": 1}'), tiny_tokenizer)
    identity = await engine.start()
    schema = StructuredOutput(ConstraintKind.JSON_SCHEMA, '{"type": "object"}')
    assert identity.model.capabilities.structured_output
    assert not (await engine.judge(schema)).problem
    recorder, _ = await generate(engine, GenerationSpec(PROMPT, SamplingParams(100, structured=schema)))
    assert '{"a": 1}' == recorder.text
    with pytest.raises(EngineRequestError):
        await engine.submit("biased", GenerationSpec(PROMPT, SamplingParams(4, logit_bias={3: 1.0})), Recorder())
    await engine.close()


def test_step_time_grows_with_tokens_and_context() -> None:
    settings = SimSettings(base_ms=5, per_token_us=20, per_kv_token_us=0.5)
    assert step_seconds(settings, 100, 10_000) == pytest.approx(0.005 + 0.002 + 0.005)


async def test_steps_take_their_time() -> None:
    loop = asyncio.get_running_loop()
    settings = SimSettings(base_ms=10, per_token_us=0, per_kv_token_us=0)
    engine = SimEngine(PoolSettings(engine=EngineKind.SIM, sim=settings), None)
    await engine.start()
    start = loop.time()
    _, end = await generate(engine, GenerationSpec(PROMPT, greedy(11)))
    assert loop.time() - start >= 0.105
    assert end.prefill_s + end.decode_s >= 0.105
    await engine.close()


async def test_a_close_that_is_cancelled_in_the_middle_says_so(engine: SimEngine) -> None:
    """Its caller is to end, and would go on otherwise."""
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
