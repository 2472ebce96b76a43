"""A stream's events, put together to one response."""

from __future__ import annotations

from penstock.v1 import inference_pb2 as api


class Collector:
    """Sum of a stream's events."""

    def __init__(self) -> None:
        self._choices: dict[int, api.Choice] = {}
        self._texts: dict[int, list[str]] = {}
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
        return api.GenerateResponse(
            request_id=self.finished.request_id,
            choices=[self._choices[index] for index in sorted(self._choices)],
            usage=self.finished.usage,
            receipt=self.finished.receipt,
        )
