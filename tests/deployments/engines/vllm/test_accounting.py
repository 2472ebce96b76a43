"""What the vLLM engine does with what its frontend tells, without vLLM: charges, failures, hangs."""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cluster.errors import EngineDeadError, EngineRequestError
from cluster.models import NOTHING_TO_SAMPLE, GenerationSpec, PoolingSpec, PromptImage, SequenceEnd
from cluster.settings import PoolSettings
from deployments.engines.vllm.engine import VllmEngine
from deployments.engines.vllm.sequence import VllmSequence
from deployments.engines.vllm.startup.adapters import Adapters
from penstock.models import ConstraintKind, FinishReason, ModelTask, PositionLogprobs, SamplingParams, StructuredOutput
from tests.support.waiting import until

STEP_S = 0.02


class Sink:
    """Keeps the end."""

    def __init__(self) -> None:
        self.end: SequenceEnd | None = None

    def on_prompt_logprobs(self, *_: object) -> None: ...

    def on_tokens(self, token_ids: Any, text: str, logprobs: list[PositionLogprobs] | None) -> None: ...

    def on_end(self, end: SequenceEnd) -> None:
        self.end = end


class Frontend:
    """Stands in for vLLM's processes."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.dead = False

    async def add(self, sequence: VllmSequence, *_: Any, **__: Any) -> None:
        if self.error is not None:
            raise self.error

    async def check_health(self) -> None:
        if self.dead:
            raise RuntimeError("gone")


def engine_with(frontend: Frontend) -> VllmEngine:
    made = VllmEngine(PoolSettings(model="demo"), "demo")
    made._launched = SimpleNamespace(  # type: ignore[assignment]  # a launch takes real processes
        frontend=frontend, translate=lambda spec: None, adapters=Adapters({}), limits=(8, 2048), parsers=None
    )
    made._limits = (8, 2048)
    return made


def spec(*, constrained: bool = False) -> GenerationSpec:
    structured = StructuredOutput(ConstraintKind.REGEX, "[a-z]+") if constrained else None
    return GenerationSpec([1, 2], SamplingParams(max_tokens=10_000, structured=structured))


def stats(running: int) -> Any:
    return SimpleNamespace(
        num_running_reqs=running, kv_cache_usage=0.1, num_kv_fetch_reqs_by_stage={}, spec_decoding_stats=None
    )


def output(token: int | None, reason: str | None = None) -> Any:
    ids = [] if token is None else [token]
    return SimpleNamespace(
        finish_reason=reason, new_token_ids=ids, new_logprobs=None, new_prompt_logprobs_tensors=None, stop_reason=None
    )


class Text:
    """Holds nothing back."""

    match = ""

    def feed(self, token_ids: Any, *, stop_token: bool, last: bool) -> str:
        return "x"

    def rest(self) -> str:
        return ""


async def begin(engine: VllmEngine, sink: Sink, *, constrained: bool = False) -> VllmSequence:
    await engine.submit("a", spec(constrained=constrained), sink)
    sequence = engine._live["a"]
    sequence.text = Text()
    return sequence


@pytest.mark.parametrize("tokens", [100, 600, 3000])
async def test_every_step_of_a_long_output_is_charged(tokens: int) -> None:
    engine, sink = engine_with(Frontend()), Sink()
    sequence = await begin(engine, sink)
    began = now = sequence.arrived_at
    for number in range(tokens):
        now += STEP_S
        last = number == tokens - 1
        if not number:
            sequence.scheduled(began)
        sequence.take(output(7, "length" if last else None), now)
        engine.on_step(stats(0 if last else 1), now)

    assert sink.end is not None
    assert pytest.approx(tokens * STEP_S) == sink.end.gpu_seconds


async def test_a_prompt_that_is_cancelled_before_its_first_token_is_charged() -> None:
    engine, sink = engine_with(Frontend()), Sink()
    sequence = await begin(engine, sink)
    for number in range(12):
        engine.on_step(stats(1), sequence.arrived_at + 0.5 * (number + 1))
    sequence.finish_reason = FinishReason.CANCELLED
    engine._slot_free(sequence)

    assert sink.end is not None
    assert pytest.approx(6.0) == sink.end.gpu_seconds


async def test_time_before_the_first_step_and_between_a_preemption_and_the_next_step_is_charged_to_nobody() -> None:
    engine, sink = engine_with(Frontend()), Sink()
    sequence = await begin(engine, sink)
    at = sequence.arrived_at
    # vLLM takes 0.3 s to begin.
    sequence.scheduled(at + 0.3)
    sequence.take(output(7), at + 1.0)
    engine.on_step(stats(1), at + 1.0)
    for end in (2.0, 3.0):
        # Two steps of others.
        engine.on_step(stats(1), at + end)
    sequence.preempted(at + 1.0)
    sequence.scheduled(at + 3.0)
    sequence.take(output(8, "length"), at + 3.5)
    engine.on_step(stats(0), at + 3.5)

    assert sink.end is not None
    assert pytest.approx(0.7 + 0.5) == sink.end.gpu_seconds
    assert pytest.approx(3.2) == engine.stats().busy_s


class Images:
    """Stands in for the reader of images, which a test holds."""

    def __init__(self) -> None:
        self.read_now = asyncio.Event()

    async def read(self, spec: GenerationSpec) -> Any:
        await self.read_now.wait()
        return "content"


async def begin_reading(engine: VllmEngine, sink: Sink) -> Images:
    images = engine._launched.images = Images()  # type: ignore[union-attr,misc,assignment]
    with_image = replace(spec(), images=(PromptImage(b"a file", 0, 1),))
    await engine.submit("a", with_image, sink)
    await asyncio.sleep(0)
    return images


async def test_a_sequence_whose_images_are_read_is_live_and_does_not_look_like_a_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, sink = engine_with(Frontend()), Sink()
    images = await begin_reading(engine, sink)
    assert ("a",) == engine.live_ids()
    now = time.monotonic()
    monkeypatch.setattr("deployments.engines.vllm.engine.time", SimpleNamespace(monotonic=lambda: now + 3600))
    await engine.check_health()
    assert (0, 0.0) == (engine.stats().waiting, engine.stats().open_s)
    images.read_now.set()
    await until(lambda: bool(engine._live))
    assert ("a",) == engine.live_ids()
    await engine.check_health()
    assert 1 == engine.stats().waiting


async def test_a_sequence_pays_for_nothing_that_ran_while_its_images_were_read() -> None:
    engine, sink = engine_with(Frontend()), Sink()
    images = await begin_reading(engine, sink)
    await engine.submit("other", spec(), Sink())
    other = engine._live["other"]
    other.scheduled(other.arrived_at)
    engine.on_step(stats(1), time.monotonic())
    images.read_now.set()
    await until(lambda: "a" in engine._live)
    sequence = engine._live["a"]
    sequence.finish_reason = FinishReason.CANCELLED
    engine._slot_free(sequence)
    assert sink.end is not None
    assert pytest.approx(0.0, abs=1e-3) == sink.end.gpu_seconds


async def test_the_death_of_the_engine_ends_a_sequence_whose_images_are_read() -> None:
    engine, sink = engine_with(Frontend()), Sink()
    images = await begin_reading(engine, sink)
    engine.on_death(RuntimeError("killed"))
    assert sink.end is not None
    assert (FinishReason.ERROR, True) == (sink.end.reason, sink.end.engine_died)
    images.read_now.set()
    await asyncio.sleep(0)
    assert () == engine.live_ids()


async def test_what_the_engine_refuses_after_the_images_ends_the_sequence() -> None:
    frontend, sink = Frontend(), Sink()
    frontend.error = EngineRequestError("the prompt is too long")
    engine = engine_with(frontend)
    images = await begin_reading(engine, sink)
    images.read_now.set()
    await until(lambda: sink.end is not None)
    assert sink.end is not None
    assert ("the prompt is too long", True) == (sink.end.error, sink.end.invalid_request)
    assert (0, ()) == (engine.stats().waiting, engine.live_ids())


async def test_only_what_vllm_itself_refuses_is_the_requests_fault() -> None:
    engine, sink = engine_with(Frontend()), Sink()
    sequence = await begin(engine, sink, constrained=True)
    sequence.take(output(None, "error"), 1.0)
    engine.on_step(stats(0), 1.0)
    assert sink.end is not None
    assert (True, "the constraint does not compile") == (sink.end.invalid_request, sink.end.error)
    assert 0.0 == sink.end.gpu_seconds

    # A constraint that can't be followed to its end; the engine says why.
    broken = Sink()
    sequence = await begin(engine, broken, constrained=True)
    sequence.take(output(7), 1.0)
    failed = output(8, "error")
    failed.stop_reason = "the constraint can't be followed: NoExtension"
    sequence.take(failed, 1.5)
    engine.on_step(stats(0), 1.5)
    assert broken.end is not None
    assert (True, failed.stop_reason) == (broken.end.invalid_request, broken.end.error)

    # A tokenizer's fault in the first text.
    other = Sink()
    sequence = await begin(engine, other, constrained=True)
    sequence.fail(left_engine=True)
    engine.on_step(stats(0), 2.0)
    assert other.end is not None
    assert (False, "the engine failed on this sequence") == (other.end.invalid_request, other.end.error)


@dataclass(frozen=True)
class RequestError:
    """vLLM 0.33's, which comes with the last output of a request."""

    code: str
    message: str
    retryable: bool = False


FAULTS = [
    # vLLM's error, whether it is the request's own fault, and the words.
    (None, True, "the constraint does not compile"),
    (RequestError("validation_error", "Invalid structured outputs: x"), True, "Invalid structured outputs: x"),
    (RequestError("engine_paused", "Generation is paused.", retryable=True), False, "Generation is paused."),
    (RequestError("validation_error", "Try again.", retryable=True), False, "Try again."),
    (RequestError("something_new", "No room."), False, "No room."),
]


@pytest.mark.parametrize(("error", "fault", "words"), FAULTS)
async def test_what_vllm_says_of_an_error_decides_whether_the_request_runs_again(
    error: RequestError | None, fault: bool, words: str
) -> None:
    """Without a word of vLLM's a constraint that fails at once counts as wrong. With one it may be a paused engine."""
    engine, sink = engine_with(Frontend()), Sink()
    sequence = await begin(engine, sink, constrained=True)
    failed = output(None, "error")
    failed.error = error
    sequence.take(failed, 1.0)
    engine.on_step(stats(0), 1.0)
    assert sink.end is not None
    assert (FinishReason.ERROR, fault, words) == (sink.end.reason, sink.end.invalid_request, sink.end.error)


async def test_an_exception_that_is_no_death_costs_its_request_only() -> None:
    frontend = Frontend()
    engine = engine_with(frontend)
    frontend.error = IndexError("piece id is out of range")
    with pytest.raises(EngineRequestError, match="piece id"):
        await engine.submit("odd", spec(), Sink())
    frontend.error = None
    await engine.submit("good", spec(), Sink())
    assert ("good",) == engine.live_ids()

    frontend.error, frontend.dead = RuntimeError("socket closed"), True
    with pytest.raises(EngineDeadError):
        await engine.submit("late", spec(), Sink())


async def hung(engine: VllmEngine, seconds: float, prompt_tokens: int = 1) -> bool:
    """Say whether an engine that made no step for so long counts as dead."""
    if not engine.live_ids():
        await begin(engine, Sink())
    engine._meter.live = engine._meter._prefill_tokens = 0
    engine._meter.arrive(time.monotonic() - seconds, prompt_tokens)
    try:
        await engine.check_health()
    except EngineDeadError:
        return True
    return False


def steps(engine: VllmEngine, *durations: float, tokens: int = 1) -> None:
    for duration in durations:
        engine._meter._recent.append((duration, tokens))


async def test_one_long_step_does_not_hide_a_hang_for_ever() -> None:
    engine = engine_with(Frontend())
    steps(engine, 0.05, 30.0)
    assert not await hung(engine, 80.0)
    assert await hung(engine, 100.0)
    steps(engine, *[0.05] * 300)
    assert not await hung(engine, 9.0)
    assert await hung(engine, 11.0)


async def test_a_long_prompt_on_a_slow_machine_is_no_hang() -> None:
    """There a prompt is one step, and none like it may have been before."""
    engine = engine_with(Frontend())
    steps(engine, *[0.5] * 20, tokens=100)
    steps(engine, *[0.05] * 20)
    assert not await hung(engine, 20.0, prompt_tokens=2000)
    assert await hung(engine, 40.0, prompt_tokens=2000)
    # Of a prompt that is split, one piece is computed at a time.
    engine._limits = (8, 200)
    assert await hung(engine, 20.0, prompt_tokens=2000)


async def test_output_that_was_complete_when_its_engine_died_is_complete() -> None:
    """Only its slot was not free yet. Run again elsewhere, it would wait there for a replica and for nothing else."""
    engine = engine_with(Frontend())
    engine._release = SimpleNamespace(add=lambda _: None)  # type: ignore[assignment]
    whole, other = Sink(), Sink()
    sequence = await begin(engine, whole)
    await engine.submit("b", spec(), other)
    sequence.text.match = "stop"  # type: ignore[misc]
    sequence.take(output(7), time.monotonic())
    engine.on_step(stats(2), time.monotonic())
    assert whole.end is None
    engine.on_death(RuntimeError("gone"))

    assert whole.end is not None
    assert other.end is not None
    assert (FinishReason.STOP, "stop", "") == (whole.end.reason, whole.end.stop_match, whole.end.error)
    assert (FinishReason.ERROR, "the engine died: gone") == (other.end.reason, other.end.error)
    # So that nothing more is started there.
    assert whole.end.engine_died
    assert other.end.engine_died


async def test_an_engine_that_never_started_takes_nothing_and_can_be_closed() -> None:
    engine = VllmEngine(PoolSettings(model="demo"), "demo")
    with pytest.raises(EngineDeadError, match="has not started"):
        await engine.submit("a", spec(), Sink())
    await engine.close()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
async def test_a_vector_with_a_number_that_is_not_finite_is_an_error_of_its_input(number: float) -> None:
    engine = engine_with(Frontend())
    sinks = {"whole": Sink(), "broken": Sink()}
    for name, sink in sinks.items():
        pooling = PoolingSpec(ModelTask.EMBED, (2,))
        await engine.submit(name, GenerationSpec([1, 2], NOTHING_TO_SAMPLE, pooling=pooling), sink)
    for name, value in (("whole", 0.5), ("broken", number)):
        vector = torch.tensor([0.25, value, 0.25])
        engine._live[name].take(SimpleNamespace(pooling_output=vector, finish_reason="stop"), time.monotonic())
    engine.on_step(stats(0), time.monotonic())

    whole, broken = sinks["whole"].end, sinks["broken"].end
    assert whole is not None
    assert broken is not None
    assert (FinishReason.STOP, struct.pack("<3f", 0.25, 0.5, 0.25)) == (whole.reason, *whole.vectors)
    assert (FinishReason.ERROR, True, ()) == (broken.reason, broken.invalid_request, broken.vectors)
    assert "NaN or infinite" in broken.error
    assert not engine.live_ids()
