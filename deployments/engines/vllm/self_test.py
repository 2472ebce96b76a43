"""Tests, run at every start, that our replacements of vLLM's internals work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from io import BytesIO
from typing import Protocol

from cluster.errors import EngineDeadError, EngineStartError
from cluster.models import NOTHING_TO_SAMPLE, GenerationSpec, PoolingSpec, PromptImage, PromptLogprobs, SequenceEnd
from deployments.engines.base import TokenSink
from penstock.models import (
    ConstraintKind,
    FinishReason,
    ModelTask,
    PoolingFeatures,
    PositionLogprobs,
    SamplingParams,
    StructuredOutput,
)

log = logging.getLogger(__name__)

_TOKENS = 3
_PATIENCE_S = 120.0
_BLANK = (224, 224)
"""Size of an image without content."""


class _Submits(Protocol):
    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None: ...


class _Looks(_Submits, Protocol):
    async def expand_images(self, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]: ...


class _HasLimits(Protocol):
    async def set_batch_limits(self, sequences: int | None, tokens: int | None) -> tuple[int, int]: ...


class _Collector:
    def __init__(self) -> None:
        self.tokens = 0
        self.logprobs = 0
        self.text = ""
        self.ended: asyncio.Future[SequenceEnd] = asyncio.get_running_loop().create_future()

    def on_prompt_logprobs(self, found: PromptLogprobs) -> None:
        """Ignore what nobody asks for."""

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        self.tokens += len(token_ids)
        self.text += text
        self.logprobs += len(logprobs or ())

    def on_end(self, end: SequenceEnd) -> None:
        self.ended.set_result(end)


async def generate_once(engine: _Submits) -> None:
    """Run a few tokens through the whole output path.

    Raises:
        EngineStartError: tokens, the end or its times did not arrive as they should.
    """
    collector = _Collector()
    greedy = SamplingParams(max_tokens=_TOKENS, temperature=0.0, ignore_eos=True, logprobs=1)
    await engine.submit("self-test", GenerationSpec((0, 0), greedy), collector)
    async with asyncio.timeout(_PATIENCE_S):
        end = await collector.ended
    if end.reason is not FinishReason.LENGTH or {collector.tokens, collector.logprobs, end.output_tokens} != {_TOKENS}:
        raise EngineStartError(
            f"asked for {_TOKENS} tokens, got {collector.tokens} with {collector.logprobs} log probabilities: {end}"
        )
    if end.prefill_s <= 0 or end.gpu_seconds <= 0:
        raise EngineStartError(f"the engine's events or statistics do not arrive: {end}")


async def pool_once(engine: _Submits, task: ModelTask, features: PoolingFeatures) -> None:
    """Run an input through the whole output path of a model that embeds or classifies.

    Raises:
        EngineStartError: its vector, the end or its times did not arrive as they should.
    """
    collector = _Collector()
    spec = GenerationSpec((0, 0), NOTHING_TO_SAMPLE, pooling=PoolingSpec(task, (2,)))
    await engine.submit("self-test", spec, collector)
    async with asyncio.timeout(_PATIENCE_S):
        end = await collector.ended
    sizes = [len(vector) // 4 for vector in end.vectors]
    if end.reason is not FinishReason.STOP or sizes != [features.size]:
        raise EngineStartError(f"asked for {features.size} numbers, got {sizes}: {end.error or end.reason}")
    if end.prefill_s <= 0 or end.gpu_seconds <= 0:
        raise EngineStartError(f"the engine's events or statistics do not arrive: {end}")


async def look_once(engine: _Looks) -> None:
    """Generate with an image, so that all of its way is loaded before the first request needs it.

    Raises:
        EngineStartError: no tokens arrived.
        EngineRequestError: the engine refuses the image.
        EngineDeadError: the engine died of it.
    """
    from PIL.Image import new

    collector, file = _Collector(), BytesIO()
    new("RGB", _BLANK).save(file, "PNG")
    [ids] = await engine.expand_images([_BLANK])
    image = PromptImage(file.getvalue(), 1, len(ids))
    greedy = SamplingParams(max_tokens=_TOKENS, temperature=0.0, ignore_eos=True)
    await engine.submit("self-test-image", GenerationSpec((0, *ids, 0), greedy, images=(image,)), collector)
    async with asyncio.timeout(_PATIENCE_S):
        end = await collector.ended
    if end.engine_died:
        raise EngineDeadError(end.error)
    if collector.tokens != _TOKENS:
        raise EngineStartError(f"asked for {_TOKENS} tokens after an image, got {collector.tokens}: {end.error}")


async def constrain_once(engine: _Submits) -> None:
    """Generate under a constraint, so that the compiler is loaded before the first request needs it.

    Raises:
        EngineStartError: the compiler does not work with the model's tokenizer.
    """
    collector = _Collector()
    choice = StructuredOutput(ConstraintKind.CHOICE, choices=("a", "b"))
    greedy = SamplingParams(max_tokens=_TOKENS, temperature=0.0, structured=choice)
    await engine.submit("self-test-constraint", GenerationSpec((0, 0), greedy), collector)
    async with asyncio.timeout(_PATIENCE_S):
        end = await collector.ended
    if end.reason not in (FinishReason.STOP, FinishReason.LENGTH) or collector.text not in ("a", "b"):
        raise EngineStartError(
            f"the compiler of structured output does not work with this model (pools.NAME.vllm.structured_output."
            f"compiler chooses another one): asked for a or b, got {collector.text!r}: {end.error or end.reason}",
            final=True,
        )


async def limits_move(engine: _HasLimits, largest: tuple[int, int]) -> bool:
    """Return whether the scheduler's limits can be moved. Afterwards they are as they were."""
    try:
        lowered = await engine.set_batch_limits(1, None)
        restored = await engine.set_batch_limits(largest[0], None)
    except Exception as error:  # noqa: BLE001
        log.warning("engine.limits.window_only", extra={"error": repr(error)})
        return False
    if lowered[0] == 1 and restored == largest:
        return True
    log.warning("engine.limits.window_only", extra={"lowered": lowered, "restored": restored, "expected": largest})
    return False
