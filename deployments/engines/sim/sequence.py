"""One live sequence of the simulated engine."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.models import GenerationSpec, PoolingSpec, SequenceEnd
from deployments.engines.base import TokenSink
from deployments.engines.sim.images import distinct_prompt
from deployments.engines.sim.text import StopText, Vocabulary
from deployments.engines.sim.tokens import TokenSource
from deployments.engines.sim.vectors import sim_vector
from penstock.models import FinishReason, PoolingFeatures


class SimSequence:
    """One sequence, from steps to tokens, text and an end. Times are seconds of the engine's clock, or None."""

    def __init__(
        self,
        sequence_id: str,
        spec: GenerationSpec,
        sink: TokenSink,
        vocabulary: Vocabulary,
        arrived_at: float,
        *,
        answer: Sequence[int] = (),
        adapter: int = 0,
    ) -> None:
        """`answer`: the tokens of the output; empty for tokens that are made up. `adapter`: what its adapter adds to
        the seed.
        """
        prior = spec.resume.prior_token_ids if spec.resume else ()
        self.sequence_id = sequence_id
        self.sampling = spec.sampling
        self.prompt_tokens = len(spec.prompt_token_ids) + len(prior)
        self.arrived_at = arrived_at
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at = 0.0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.pooling = spec.pooling
        self._prompt = spec.prompt_token_ids
        self._vectors: tuple[bytes, ...] = ()
        self._stop_token = ""
        """Stop token id that ended the sequence."""
        self._entered: float | None = None
        """Reading of the share clock when it last entered the batch; None while it is not in it."""
        self._share = 0.0
        """Engine time of the times in the batch that are over."""
        self._sink = sink
        self._prior_tokens = len(prior)
        self._prompt = spec.prompt_token_ids
        self._end_id = vocabulary.end_id
        seed = (spec.sampling.seed or 0) + (adapter << 32)
        self.distinct_prompt = distinct_prompt(spec)
        """Prompt with what the images are in the places of their tokens."""
        self._source = TokenSource(self.distinct_prompt, seed, vocabulary.natural_ids, vocabulary.end_id, answer)
        self._decode = vocabulary.decoder()
        self._text = StopText(spec.sampling.stop)
        for index, token in enumerate(prior, 1):
            may_stop = index == len(prior) > spec.sampling.min_tokens
            self._text.add(self._decode(token), may_stop=may_stop)
            if may_stop and (self._text.match or token in spec.sampling.stop_token_ids or self._ends(token)):
                # The output was already complete before the resume. Only the news of its end was lost.
                self.finish_reason = FinishReason.STOP
                self._note_stop_token(token)
        if spec.resume:
            self._text.skip(spec.resume.prior_text_length)

    @property
    def prefilled(self) -> bool:
        """Whether its prompt is computed."""
        return self.first_token_at is not None

    def enter(self, reading: float) -> None:
        """Enter the batch, at a reading of the engine's share clock."""
        self._entered = reading

    def pause(self, reading: float) -> None:
        """Leave the batch until it enters again."""
        self._share, self._entered = self.share(reading), None

    def share(self, reading: float) -> float:
        """Return the engine time in seconds of all times in the batch, up to a reading."""
        return self._share + (0.0 if self._entered is None else reading - self._entered)

    def pool(self, now: float, pooling: PoolingSpec, features: PoolingFeatures) -> None:
        """Make the vector of the prompt, and end."""
        self._vectors = (sim_vector(self._prompt, pooling, features),)
        self.first_token_at = self.last_token_at = now
        self.finish_reason = FinishReason.STOP

    def produce(self, now: float, context_left: int) -> bool:
        """Draw the next token and send it. Return whether it was the last one.

        Args:
            now: end of the step.
            context_left: tokens that the model's context has room for after this one.
        """
        sampling = self.sampling
        index = self._prior_tokens + self.output_tokens
        may_end = index >= sampling.min_tokens
        token = self._source.token(index, may_end=may_end and not sampling.ignore_eos)
        if not self.output_tokens and sampling.prompt_logprobs is not None:
            self._sink.on_prompt_logprobs(self._source.prompt_logprobs(self._prompt, sampling.prompt_logprobs))
        self.output_tokens += 1
        self.first_token_at = now if self.first_token_at is None else self.first_token_at
        self.last_token_at = now
        stopped = may_end and (token in sampling.stop_token_ids or self._ends(token))
        if stopped:
            self._note_stop_token(token)
        else:
            self._text.add(self._decode(token), may_stop=may_end)
        if stopped or self._text.match:
            self.finish_reason = FinishReason.STOP
        elif index + 1 >= sampling.max_tokens or context_left <= 0:
            self.finish_reason = FinishReason.LENGTH
        ended = self.finish_reason is not None
        logprobs = None if sampling.logprobs is None else [self._source.logprobs(index, token, sampling.logprobs)]
        self._sink.on_tokens([token], self._text.release(ended=ended), logprobs)
        return ended

    def release_text(self) -> None:
        """Send the text that was held back. No token may follow."""
        if text := self._text.release(ended=True):
            self._sink.on_tokens([], text, None)

    def end(
        self,
        reason: FinishReason,
        *,
        gpu_seconds: float = 0.0,
        error: str = "",
        invalid_request: bool = False,
        engine_died: bool = False,
    ) -> None:
        first = self.first_token_at
        self._sink.on_end(
            SequenceEnd(
                reason=reason,
                stop_match=self._text.match or self._stop_token,
                output_tokens=self.output_tokens,
                cached_tokens=self.cached_tokens,
                engine_wait_s=0.0 if self.scheduled_at is None else self.scheduled_at - self.arrived_at,
                prefill_s=0.0 if first is None else first - self.arrived_at,
                decode_s=0.0 if first is None else self.last_token_at - first,
                gpu_seconds=gpu_seconds,
                error=error,
                invalid_request=invalid_request,
                engine_died=engine_died,
                vectors=self._vectors,
            )
        )

    def _note_stop_token(self, token: int) -> None:
        if token in self.sampling.stop_token_ids:
            self._stop_token = str(token)

    def _ends(self, token: int) -> bool:
        return token == self._end_id and not self.sampling.ignore_eos
