"""One live sequence of the vLLM engine, from the engine's output to the sink."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from cluster.models import GenerationSpec, SequenceEnd
from deployments.engines.base import TokenSink
from deployments.engines.vllm.logprobs import to_positions, to_prompt
from deployments.engines.vllm.text import Text
from penstock.models import FinishReason

_LOG = logging.getLogger(__name__)


class SequenceOwner(Protocol):
    """Owner of the sequences and their common counters."""

    def share_at(self, moment: float) -> float:
        """Return the reading of the engine's share clock at a recent time."""
        ...

    def on_scheduled(self, moment: float) -> float:
        """Handle a step that a sequence enters the batch with. Return the share clock's reading at its begin."""
        ...

    def on_first_token(self, sequence: VllmSequence) -> None:
        """Handle the end of a sequence's prefill."""
        ...

    def on_preempted(self) -> None:
        """Handle a preemption: a sequence lost its KV cache for a while."""
        ...

    def on_output_end(self, sequence: VllmSequence) -> None:
        """Handle the last output of a sequence. The owner ends the sequence when its slot is free."""
        ...


class _NoText:
    """Text of a sequence that has no output yet."""

    match = ""

    def feed(self, token_ids: list[int], *, stop_token: bool, last: bool) -> str:
        raise RuntimeError("output came before its text was set")

    def rest(self) -> str:
        return ""


NO_TEXT = _NoText()
_INVALID = "validation_error"
"""Code of vLLM's errors that lie in the request."""


class VllmSequence:
    """Receiver of the engine's output for one request."""

    __slots__ = (
        "_owner", "_prompt_rows", "_share_at_preemption", "_sink", "arrived_at", "broken", "cached_tokens",
        "finish_reason", "first_token_at",
        "internal_id", "last_output_at", "left_engine", "output_tokens", "prompt_tokens", "refused", "request_error",
        "sampling",
        "scheduled_at", "sequence_id", "share_at_start", "stop_match", "text", "vectors",
    )  # fmt: skip

    def __init__(
        self, sequence_id: str, spec: GenerationSpec, sink: TokenSink, owner: SequenceOwner, arrived_at: float
    ) -> None:
        self.sequence_id = sequence_id
        self.internal_id = ""
        """vLLM's id of the request."""
        self.sampling = spec.sampling
        self.prompt_tokens = len(spec.prompt_token_ids) + (len(spec.resume.prior_token_ids) if spec.resume else 0)
        self._prompt_rows = len(spec.prompt_token_ids) - 1
        self.text: Text = NO_TEXT
        """Set before the first output."""
        # Times are seconds of the machine's monotonic clock, the same in all processes. 0 means not yet.
        self.arrived_at = arrived_at
        self.scheduled_at = 0.0
        self.first_token_at = 0.0
        self.last_output_at = 0.0
        self.share_at_start = owner.share_at(arrived_at)
        """Share clock at the first step. vLLM reports it with the first output; until then the arrival counts."""
        self._share_at_preemption: float | None = None
        """Share clock when it left the batch; None while it is in it. vLLM reports it with the next output."""
        self.left_engine = False
        """Whether the engine itself ended the request. False after a stop string, which only this process sees."""
        self.output_tokens = 0
        self.vectors: tuple[bytes, ...] = ()
        """Result of an input whose vector is asked for."""
        self.cached_tokens = 0
        self.stop_match = ""
        self.refused = False
        """Whether vLLM failed the request before its first token."""
        self.request_error: Any = None
        """vLLM's own word on why it failed the request: a RequestError. vLLM 0.32 gives none."""
        self.broken = ""
        """Reason why the engine could not follow the sequence's constraint to its end; empty if it did."""
        self.finish_reason: FinishReason | None = None
        self._sink = sink
        self._owner = owner

    def enter(self, moment: float) -> None:
        """Note when it enters the engine. It pays for nothing that ran while its images were read."""
        self.share_at_start = self._owner.share_at(moment)

    def scheduled(self, moment: float) -> None:
        """Note the first step, or the first one after a preemption: what is between them is charged to others."""
        # At once, because the clock remembers only some hundred steps.
        reading = self._owner.on_scheduled(moment)
        if not self.scheduled_at:
            self.scheduled_at, self.share_at_start = moment, reading
        elif self._share_at_preemption is not None:
            self.share_at_start += reading - self._share_at_preemption
            self._share_at_preemption = None

    def preempted(self, moment: float) -> None:
        self._share_at_preemption = self._owner.share_at(moment)
        self._owner.on_preempted()

    def share(self, reading: float) -> float:
        """Return its engine time in seconds, up to a reading of the share clock."""
        if not self.scheduled_at and self.finish_reason not in (FinishReason.CANCELLED, FinishReason.DEADLINE):
            return 0.0
        # A sequence that was cancelled in its prefill pays from its arrival: the start of its first step is not known.
        return reading - self.share_at_start

    def failure(self) -> tuple[str, bool]:
        """Return why vLLM failed it, and whether that is the request's own fault.

        vLLM fails single requests when their grammar does not compile or can't be followed to its end, and on internal
        errors. Since 0.33 it may say which: an error that it finds in the request, and is not to be retried, is the
        request's own fault. Anything else runs again elsewhere, such as what a paused engine refuses.
        """
        if (told := self.request_error) is not None:
            return str(told.message), told.code == _INVALID and not told.retryable
        if self.sampling.structured is not None and (self.refused or self.broken != ""):
            return self.broken or "the constraint does not compile", True
        return "the engine failed on this sequence", False

    def take(self, output: Any, at: float) -> None:
        """Take one vLLM EngineCoreOutput of a step that ended at `at`. Runs per token."""
        if self.finish_reason is not None:
            return
        self.last_output_at = at
        reason = "" if output.finish_reason is None else str(output.finish_reason)
        token_ids = output.new_token_ids
        if (prompt := output.new_prompt_logprobs_tensors) is not None:
            self._sink.on_prompt_logprobs(to_prompt(prompt, self._prompt_rows))
        text = self.text.feed(token_ids, stop_token=reason == "stop", last=reason != "")
        if token_ids:
            if not self.output_tokens:
                self.first_token_at = at
                self._owner.on_first_token(self)
            self.output_tokens += len(token_ids)
        if token_ids or text:
            logprobs = None
            if (found := output.new_logprobs) is not None:
                asked = self.sampling.logprobs or 0
                logprobs = to_positions(found.logprob_token_ids, found.logprobs, found.sampled_token_ranks, asked)[
                    : len(token_ids)
                ]
            self._sink.on_tokens(token_ids, text, logprobs)
        if reason or self.text.match:
            if reason == "error":
                self.note_error(output)
            self.left_engine = reason != ""
            self.stop_match = self.text.match or (self.stop_token(token_ids[-1]) if reason == "stop" else "")
            self.finish_reason = FinishReason.STOP if self.text.match else _REASONS[reason]
            self._owner.on_output_end(self)

    def note_error(self, output: Any) -> None:
        """Note what vLLM says of its failure of the request, in its last output."""
        self.refused = not self.output_tokens
        self.request_error = getattr(output, "error", None)
        if isinstance(output.stop_reason, str):
            self.broken = output.stop_reason

    def release_text(self) -> None:
        """Send the text that was held back. No token may follow. Text that a tokenizer fails on is not sent."""
        try:
            text = self.text.rest()
        except Exception:  # noqa: BLE001
            _LOG.exception("sequence.text_lost", extra={"sequence": self.sequence_id})
            return
        if text:
            self._sink.on_tokens([], text, None)

    def stop_token(self, token: int) -> str:
        """Return the id of the token that ended the output if the request asked for it; "" for the model's own end."""
        return str(token) if token in self.sampling.stop_token_ids else ""

    def fail(self, *, left_engine: bool) -> None:
        """Take no more output and end with an error. `left_engine`: the engine itself has ended the sequence."""
        self.left_engine = left_engine
        self.finish_reason = FinishReason.ERROR
        self._owner.on_output_end(self)

    def end(
        self,
        reason: FinishReason,
        *,
        gpu_seconds: float = 0.0,
        error: str = "",
        invalid_request: bool = False,
        engine_died: bool = False,
    ) -> None:
        self.finish_reason = reason
        first, last = self.first_token_at, self.last_output_at
        self._sink.on_end(
            SequenceEnd(
                reason=reason,
                stop_match=self.stop_match,
                output_tokens=self.output_tokens,
                cached_tokens=self.cached_tokens,
                engine_wait_s=max(0.0, self.scheduled_at - self.arrived_at) if self.scheduled_at else 0.0,
                prefill_s=max(0.0, first - self.arrived_at) if first else 0.0,
                decode_s=max(0.0, last - first) if first else 0.0,
                gpu_seconds=gpu_seconds,
                error=error,
                invalid_request=invalid_request,
                engine_died=engine_died,
                vectors=self.vectors,
            )
        )


_REASONS = {
    "stop": FinishReason.STOP,
    "repetition": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.CANCELLED,
    "error": FinishReason.ERROR,
}


def ids_of(sequences: Sequence[VllmSequence]) -> list[str]:
    """Return vLLM's ids of sequences."""
    return [sequence.internal_id for sequence in sequences]
