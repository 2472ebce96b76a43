"""Assembly of a stream's events into a completion."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc

from penstock.models import FinishReason, PositionLogprobs, ToolCall, ToolCallDelta
from penstock.values.errors import CancelledError, DeadlineExceededError, ErrorDetails
from penstock.values.events import ChoiceEnd, Delta, Event, Finished
from penstock.values.results import Choice, Completion


@dataclass(slots=True)
class _Parts:
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, list[ToolCallDelta]] = field(default_factory=dict)
    """Deltas of each tool call, by its number."""


class Gathering:
    """Sum of a stream's events so far, from its first token."""

    def __init__(self) -> None:
        self._parts: dict[int, _Parts] = {}
        self._prompt_logprobs: tuple[PositionLogprobs, ...] = ()
        self._finished: Finished | None = None

    def add(self, event: Event) -> None:
        match event:
            case Delta():
                parts = self._parts.setdefault(event.choice_index, _Parts())
                parts.texts.append(event.text)
                parts.token_ids.extend(event.token_ids)
                parts.logprobs.extend(event.logprobs)
                parts.reasoning.append(event.reasoning)
                for call in event.tool_calls:
                    parts.calls.setdefault(call.index, []).append(call)
                self._prompt_logprobs = event.prompt_logprobs or self._prompt_logprobs
            case Finished():
                self._finished = event

    def completion(self, timeout: float | None) -> Completion:
        """Return the result of a stream that ended with OK. `timeout`: seconds that the call had.

        Raises:
            DeadlineExceededError, CancelledError: the generation was stopped; a partial answer must not look complete.
            ValueError: the stream has not ended.
        """
        finished = self._finished
        if finished is None:
            raise ValueError("the stream has not ended")
        reasons = {end.finish_reason for end in finished.choices}
        if FinishReason.DEADLINE in reasons:
            limit = "the deadline" if timeout is None else f"timeout: {timeout:g} s"
            raise DeadlineExceededError(
                f"{limit} passed before the output was complete",
                grpc.StatusCode.DEADLINE_EXCEEDED,
                ErrorDetails(reason="DEADLINE"),
            )
        if FinishReason.CANCELLED in reasons:
            raise CancelledError(
                "the request was cancelled", grpc.StatusCode.CANCELLED, ErrorDetails(reason="CANCELLED")
            )
        choices = tuple(self._choice(end) for end in finished.choices)
        return Completion(
            finished.request_id,
            choices,
            finished.usage,
            finished.receipt,
            self._prompt_logprobs,
            unenforced=finished.unenforced,
        )

    def _choice(self, end: ChoiceEnd) -> Choice:
        parts = self._parts.get(end.index) or _Parts()
        return Choice(
            index=end.index,
            text="".join(parts.texts),
            token_ids=tuple(parts.token_ids),
            logprobs=tuple(parts.logprobs),
            finish_reason=end.finish_reason,
            stop_match=end.stop_match,
            reasoning="".join(parts.reasoning),
            tool_calls=tuple(_call(parts.calls[number]) for number in sorted(parts.calls)),
        )


def _call(deltas: list[ToolCallDelta]) -> ToolCall:
    return ToolCall(deltas[0].id, deltas[0].name, "".join([delta.arguments for delta in deltas]))
