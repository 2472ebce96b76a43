"""A token sink that remembers, and complains when the engine breaks the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from cluster.models import GenerationSpec, PromptLogprobs, SequenceEnd
from deployments.engines.base import Engine
from penstock.models import PositionLogprobs, SamplingParams


class Recorder:
    """Takes one sequence's output; `on_each` is called after every delta."""

    def __init__(self, on_each: Callable[[], None] | None = None) -> None:
        self.tokens: list[int] = []
        self.texts: list[str] = []
        self.logprobs: list[PositionLogprobs] = []
        self.deltas_with_logprobs = 0
        self.prompt: PromptLogprobs | None = None
        self.first = asyncio.Event()
        self._on_each = on_each
        self._end: asyncio.Future[SequenceEnd] = asyncio.get_running_loop().create_future()

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def ended(self) -> bool:
        return self._end.done()

    def on_prompt_logprobs(self, found: PromptLogprobs) -> None:
        assert self.prompt is None, "log probabilities of the prompt came twice"
        assert not self.tokens, "log probabilities of the prompt came after a token"
        self.prompt = found

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        assert not self._end.done(), "output after the end"
        self.tokens += token_ids
        self.texts.append(text)
        if logprobs is not None:
            assert len(logprobs) == len(token_ids)
            self.logprobs += logprobs
            self.deltas_with_logprobs += 1
        self.first.set()
        if self._on_each:
            self._on_each()

    def on_end(self, end: SequenceEnd) -> None:
        assert not self._end.done(), "a second end"
        self._end.set_result(end)

    async def end(self) -> SequenceEnd:
        return await asyncio.wait_for(asyncio.shield(self._end), 60)


_numbers = iter(range(1_000_000))


def greedy(max_tokens: int = 16, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **more)  # type: ignore[arg-type]


def new_id() -> str:
    return f"sequence-{next(_numbers)}"


async def begin(engine: Engine, spec: GenerationSpec, recorder: Recorder | None = None) -> tuple[str, Recorder]:
    recorder = recorder or Recorder()
    sequence_id = new_id()
    await engine.submit(sequence_id, spec, recorder)
    return sequence_id, recorder


async def generate(engine: Engine, spec: GenerationSpec) -> tuple[Recorder, SequenceEnd]:
    _, recorder = await begin(engine, spec)
    return recorder, await recorder.end()
