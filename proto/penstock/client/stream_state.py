"""State that a client keeps of a stream."""

from __future__ import annotations

from penstock.client.retry import Attempts
from penstock.v1 import inference_pb2
from penstock.values.errors import MODEL_CHANGED, PenstockClientError, protocol_error
from penstock.values.events import Delta, Event, Finished, Queued, Resumed, Started, event_from_proto
from penstock.values.requests import ResumePoint

LEFT = "the stream was left before its end, as `break` does, which cancels its request"
"""Message for a reader that comes back."""


def names_ids(request: object) -> bool:
    """Return whether a request has ids of its caller, which mean another text to a model with another tokenizer."""
    if not isinstance(request, inference_pb2.GenerateRequest):
        return False
    sampling = request.sampling
    return request.prompt.HasField("tokens") or bool(sampling.stop_token_ids or sampling.logit_bias)


def is_final(request: object, error: PenstockClientError) -> bool:
    """Return whether a request must not be sent anew after an error, because its ids are another model's."""
    return error.reason == MODEL_CHANGED and names_ids(request)


class StreamState:
    """State of one stream over all its calls: its names, the progress of each choice, and what to do when a call fails.
    Checks that no token is missing or repeated. Pure: time and randomness are in `attempts`.
    """

    def __init__(self, request: inference_pb2.StreamGenerateRequest, attempts: Attempts) -> None:
        """Begin with `request`, which starts a stream or continues one."""
        self.attempts = attempts
        self.request_id = ""
        self.resume_token = request.resume.resume_token
        self._request = request
        self.begun = False
        """Whether an event was delivered; the call must then not be repeated from the start."""
        self._received = dict(enumerate(request.resume.received_tokens))
        self._finished = False

    @property
    def resume_point(self) -> ResumePoint | None:
        """Position at which another stream may continue; None before the first event."""
        return ResumePoint(self.resume_token, self.received_tokens) if self.resume_token else None

    def request(self) -> inference_pb2.StreamGenerateRequest:
        """Return the request of the next call: the whole stream, or the rest of it."""
        if not self.begun:
            return self._request
        rest = inference_pb2.StreamGenerateRequest()
        rest.CopyFrom(self._request)
        rest.resume.resume_token = self.resume_token
        rest.resume.received_tokens[:] = self.received_tokens
        return rest

    def failed(self, error: PenstockClientError) -> float | None:
        """Note that a call failed; return the seconds until the next one, or None when the error is final."""
        if is_final(self._request.generate, error):
            return None
        # The request waited and never ran, so it is sent anew.
        if error.reason == MODEL_CHANGED and not any(self._received.values()):
            self._request.ClearField("resume")
            self.begun, self.resume_token = False, b""
        if self.resume_token:
            return self.attempts.wait_to_resume(error)
        return None if self.begun else self.attempts.wait_after(error)

    @property
    def received_tokens(self) -> tuple[int, ...]:
        """Number of output tokens received per choice."""
        return tuple(self._received.get(index, 0) for index in range(max(self._received, default=-1) + 1))

    def accept(self, wire: inference_pb2.StreamGenerateResponse) -> Event | None:
        """Convert an event and update the state; None for a kind that this version does not know.

        Raises:
            InternalError: tokens are missing or repeated, or something follows `finished`.
        """
        event = event_from_proto(wire)
        if self._finished:
            raise protocol_error("the stream went on after its last event")
        match event:
            case Delta():
                expected = self._received.get(event.choice_index, 0)
                if event.offset != expected:
                    raise protocol_error(
                        f"choice {event.choice_index} continues at token {event.offset}, expected {expected}"
                    )
                self._received[event.choice_index] = expected + len(event.token_ids)
            case Queued() | Started():
                self.request_id, self.resume_token = event.request_id, event.resume_token
            case Resumed():
                self.resume_token = event.resume_token or self.resume_token
            case Finished():
                self._finished = True
                self.request_id = event.request_id or self.request_id
            case _:
                pass
        if event is not None:
            self.begun = True
            self.attempts.progressed()
        return event

    def end(self) -> None:
        """Note that the stream ended OK.

        Raises:
            InternalError: the last event was not `finished`.
        """
        if not self._finished:
            raise protocol_error("the stream ended without its last event")
