"""Groups of inputs whose vectors are asked for: one attempt, and a sequence of the engine for each input.

The queue and the links know the group alone. Its inputs enter the engine together, and its end comes when the last one
has ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from cluster.errors import EngineRequestError
from cluster.models import GenerationSpec, PoolingSpec, PromptLogprobs, SequenceEnd
from deployments.engines.base import SequenceEngine, TokenSink
from penstock.models import FinishReason, PositionLogprobs

_MARK = "|"
"""Sign between the name of a group and the number of an input. Ids of requests and attempts do not have it."""


class GroupingEngine:
    """The part of an engine that attempts use. It takes groups of inputs too."""

    def __init__(self, engine: SequenceEngine) -> None:
        self._engine = engine
        self._groups: dict[str, _Group] = {}

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        """Start a sequence, or all sequences of a group.

        Raises:
            EngineRequestError: the engine refuses one of the inputs; the sink is never called.
            EngineDeadError: the engine is dead.
        """
        if spec.pooling is None:
            await self._engine.submit(sequence_id, spec, sink)
            return
        parts = list(_parts(spec, spec.pooling))
        group = _Group(len(parts), sink, partial(self._groups.pop, sequence_id, None))
        self._groups[sequence_id] = group
        try:
            for number, part in enumerate(parts):
                await self._engine.submit(f"{sequence_id}{_MARK}{number}", part, _Input(group, number))
        except BaseException:
            group.give_up()
            await self._engine.abort(_names(sequence_id, group))
            raise
        group.begin()

    async def abort(
        self, sequence_ids: Sequence[str], reason: str = "cancelled", *, release_text: bool = False
    ) -> None:
        """Stop sequences and groups, as `Engine.abort`."""
        names = [
            name
            for each in sequence_ids
            for name in (_names(each, self._groups[each]) if each in self._groups else (each,))
        ]
        await self._engine.abort(names, reason, release_text=release_text)

    def live_ids(self) -> Collection[str]:
        """Return the names of the sequences and groups that have not ended."""
        return {each.partition(_MARK)[0] for each in self._engine.live_ids()}


class _Group:
    """Ends of a group's inputs so far."""

    def __init__(self, inputs: int, sink: TokenSink, forget: Callable[[], object]) -> None:
        self.ends: list[SequenceEnd | None] = [None] * inputs
        self._left = inputs
        self._begun = False
        """Whether all inputs have entered the engine."""
        self._sink: TokenSink | None = sink
        self._forget = forget

    def begin(self) -> None:
        """Note that all inputs have entered the engine."""
        self._begun = True
        self._close_if_over()

    def give_up(self) -> None:
        """Tell nothing, because not all inputs could begin."""
        self._sink = None
        self._forget()

    def ended(self, number: int, end: SequenceEnd) -> None:
        """Note the end of an input."""
        self.ends[number] = end
        self._left -= 1
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self._begun and self._left == 0 and self._sink is not None:
            self._forget()
            self._sink.on_end(_whole([end for end in self.ends if end is not None]))


class _Input:
    """Receiver of the end of one input."""

    def __init__(self, group: _Group, number: int) -> None:
        self._group = group
        self._number = number

    def on_prompt_logprobs(self, found: PromptLogprobs) -> None:
        """Ignore log probabilities. There are none."""

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        """Ignore tokens. There are none."""

    def on_end(self, end: SequenceEnd) -> None:
        self._group.ended(self._number, end)


def _names(sequence_id: str, group: _Group) -> list[str]:
    return [f"{sequence_id}{_MARK}{number}" for number in range(len(group.ends))]


def _parts(spec: GenerationSpec, pooling: PoolingSpec) -> Iterator[GenerationSpec]:
    if sum(pooling.lengths) != len(spec.prompt_token_ids) or not pooling.lengths:
        raise EngineRequestError("the lengths of the inputs are not those of the prompt")
    if pooling.second_at and len(pooling.second_at) != len(pooling.lengths):
        raise EngineRequestError("not all inputs are pairs")
    ends = list(itertools.accumulate(pooling.lengths))
    for number, (length, end) in enumerate(zip(pooling.lengths, ends, strict=True)):
        second_at = pooling.second_at[number : number + 1]
        yield replace(
            spec,
            prompt_token_ids=spec.prompt_token_ids[end - length : end],
            pooling=replace(pooling, lengths=(length,), second_at=second_at),
        )


def _whole(ends: Sequence[SequenceEnd]) -> SequenceEnd:
    """Put the ends of a group's inputs together. One that did not end well decides."""
    failed = next((end for end in ends if end.reason is not FinishReason.STOP), None)
    last = max(ends, key=lambda end: end.prefill_s)
    return replace(
        failed or last,
        cached_tokens=sum(end.cached_tokens for end in ends),
        engine_wait_s=min(end.engine_wait_s for end in ends),
        prefill_s=last.prefill_s,
        gpu_seconds=sum(end.gpu_seconds for end in ends),
        vectors=() if failed else tuple(vector for end in ends for vector in end.vectors),
    )
