"""The first token of an engine: proof that all of it works."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence

from cluster.errors import EngineStartError
from cluster.models import NOTHING_TO_SAMPLE, GenerationSpec, PoolingSpec, PromptLogprobs, SequenceEnd
from deployments.engines.base import Engine
from penstock.models import ModelTask, PositionLogprobs, SamplingParams

FIRST_TOKEN_TIMEOUT_S = 300.0
"""The first generation may compile kernels."""


class _FirstToken:
    """Sink that waits for the end and counts tokens."""

    def __init__(self) -> None:
        self.done: asyncio.Future[SequenceEnd] = asyncio.get_running_loop().create_future()
        self.tokens = 0

    def on_prompt_logprobs(self, found: PromptLogprobs) -> None:
        """Ignore what nobody asks for."""

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        self.tokens += 1

    def on_end(self, end: SequenceEnd) -> None:
        if not self.done.done():
            self.done.set_result(end)


async def first_token(engine: Engine, task: ModelTask = ModelTask.GENERATE) -> None:
    """Generate one real token, or the vector of an input. It shows that the whole engine works, and warms it up.

    Raises:
        EngineStartError: no token came.
    """
    sink = _FirstToken()
    name = "warm-up-" + hashlib.sha256(str(time.monotonic_ns()).encode()).hexdigest()[:8]
    spec = GenerationSpec([1, 2, 3], SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True))
    if task is not ModelTask.GENERATE:
        spec = GenerationSpec([1, 2, 3], NOTHING_TO_SAMPLE, pooling=PoolingSpec(task, (3,)))
    await engine.submit(name, spec, sink)
    try:
        async with asyncio.timeout(FIRST_TOKEN_TIMEOUT_S):
            end = await sink.done
    except TimeoutError:
        raise EngineStartError(f"no token within {FIRST_TOKEN_TIMEOUT_S:.0f} s") from None
    if sink.tokens == 0 and not end.vectors:
        raise EngineStartError(f"the first generation ended without a token: {end.reason} {end.error}")
