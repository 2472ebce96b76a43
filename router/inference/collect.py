"""A stream's events, put together to one response."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.generation.parsed import join_calls


class Collector:
    """Sum of a stream's events."""

    def __init__(self) -> None:
        self._choices: dict[int, api.Choice] = {}
        self._texts: dict[int, list[str]] = {}
        self._reasoning: dict[int, list[str]] = {}
        self._calls: dict[int, list[types.ToolCallDelta]] = {}
        self._prompt_logprobs: Iterable[types.PositionLogprobs] = ()
        self.finished = api.Finished()
        """The last event; empty until it came."""

    def add(self, event: api.StreamGenerateResponse) -> None:
        """Add one event."""
        if event.HasField("delta"):
            delta = event.delta
            choice = self._choice(delta.choice_index)
            choice.token_ids.extend(delta.token_ids)
            choice.logprobs.extend(delta.logprobs)
            self._texts[delta.choice_index].append(delta.text)
            if delta.reasoning:
                self._reasoning.setdefault(delta.choice_index, []).append(delta.reasoning)
            if delta.tool_calls:
                self._calls.setdefault(delta.choice_index, []).extend(delta.tool_calls)
            if delta.prompt_logprobs:
                self._prompt_logprobs = delta.prompt_logprobs
        elif event.HasField("finished"):
            self.finished = event.finished
            for end in event.finished.choices:
                choice = self._choice(end.index)
                choice.finish_reason = end.finish_reason
                choice.stop_match = end.stop_match

    def _choice(self, index: int) -> api.Choice:
        if index not in self._choices:
            self._choices[index] = api.Choice(index=index)
            self._texts[index] = []
        return self._choices[index]

    def response(self) -> api.GenerateResponse:
        """Return the result so far; complete after the event `finished`."""
        for index, choice in self._choices.items():
            choice.text = "".join(self._texts[index])
            choice.reasoning = "".join(self._reasoning.get(index, ()))
            choice.ClearField("tool_calls")
            for call in join_calls(self._calls.get(index, ())):
                choice.tool_calls.add(id=call.id, name=call.name, arguments=call.arguments)
        return api.GenerateResponse(
            request_id=self.finished.request_id,
            choices=[self._choices[index] for index in sorted(self._choices)],
            usage=self.finished.usage,
            receipt=self.finished.receipt,
            prompt_logprobs=self._prompt_logprobs,
            unenforced=self.finished.unenforced,
        )
