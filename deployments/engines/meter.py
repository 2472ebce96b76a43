"""Counters of an engine's work, step by step. No I/O and no clock of its own."""

from __future__ import annotations

from collections import deque

from cluster.control.step_model import StepSample
from cluster.models import EngineStats
from deployments.engines.share_clock import ShareClock

_KEPT_STEPS = 4096
_RECENT_STEPS = 256
_STALL_S = 10.0
"""Without a step for this long although there is work, an engine counts as hung."""
_STALL_STEPS = 20
"""The same in longest recent steps: a long prefill on a slow machine is no hang."""
_STALL_STEPS_MOST_S = 60.0
"""Bound on the limit in steps: one long step must not hide a hang for the rest of the engine's life."""
_STALL_PATIENCE = 3.0
"""The limit is at least this many times the longest recent step, and the prefill of the prompts that wait."""


class StepMeter:
    """Counters of one engine. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.clock = ShareClock()
        self.live = 0
        """Sequences inside the engine."""
        self.most_running = 0
        """Largest batch since the start."""
        self._running = 0
        self._kv_usage = 0.0
        self._prefill_tokens = 0
        self._steps = 0
        self._busy_s = 0.0
        self._ended_gpu_s = 0.0
        self._output_tokens = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._preemptions = 0
        self._draft_tokens = 0
        self._accepted_tokens = 0
        self._progress_at = 0.0
        self._fresh = True
        """Whether the next step is the first one after an idle time. The exact start of that step is not known."""
        self._steps_taken: deque[StepSample] = deque(maxlen=_KEPT_STEPS)
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RECENT_STEPS)
        """Duration and computed tokens of recent steps; 0 tokens where the engine does not report them."""

    def arrive(self, now: float, prompt_tokens: int) -> None:
        """Count a sequence that enters the engine."""
        if not self.live:
            self.clock.resume(now)
            self._fresh = True
            self._progress_at = now
        self.live += 1
        self._prefill_tokens += prompt_tokens

    def scheduled(self, moment: float) -> None:
        """Note when a step began, where the engine tells it. The first step after an idle time begins then, and not at
        the arrival: the time between belongs to no sequence.
        """
        if self._fresh:
            self.clock.resume(moment)

    def prefilled(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a sequence's first token."""
        self._prefill_tokens -= prompt_tokens
        self._prompt_tokens += prompt_tokens
        self._cached_tokens += cached_tokens

    def preempted(self) -> None:
        """Count a preemption when it happens. At the end of the sequence it would lower the batch limit for a past
        problem.
        """
        self._preemptions += 1

    def leave(self, *, prompt_tokens: int, prefilled: bool, output_tokens: int, gpu_seconds: float) -> None:
        """Count a sequence that left the engine."""
        self.live -= 1
        self._ended_gpu_s += gpu_seconds
        self._output_tokens += output_tokens
        if not prefilled:
            self._prefill_tokens -= prompt_tokens

    def step(
        self,
        now: float,
        in_step: int,
        *,
        running: int,
        kv_usage: float,
        tokens: int | None = None,
        kv_tokens: int | None = None,
        began: float | None = None,
    ) -> None:
        """Count a step.

        Args:
            now: end of the step.
            in_step: sequences that were in it.
            running: sequences that stay in the batch.
            kv_usage: used part of the KV cache, 0 to 1.
            tokens: tokens computed in it; None where the engine does not report them, then the step is no sample.
            kv_tokens: context tokens read; None as for `tokens`.
            began: start of the step where it is known. Then the first step after an idle time is a sample too.
        """
        self._running = running
        self._kv_usage = kv_usage
        self.most_running = max(self.most_running, in_step)
        duration = self.clock.step(now, in_step)
        self._recent.append((duration, tokens or 0))
        self._progress_at = now
        self._steps += 1
        self._busy_s += duration if in_step else 0.0
        if self._fresh and began is not None:
            duration, self._fresh = now - began, False
        if tokens and kv_tokens is not None and in_step and not self._fresh:
            self._steps_taken.append(StepSample(duration, tokens, kv_tokens, in_step))
        self._fresh = False

    def take_steps(self) -> list[StepSample]:
        """Return the steps since the last call, at most the last few thousand."""
        taken = list(self._steps_taken)
        self._steps_taken.clear()
        return taken

    @property
    def longest_step_s(self) -> float:
        """Duration of the longest recent step in seconds; 0 without any."""
        return max((duration for duration, _ in self._recent.copy()), default=0.0)

    def prefill_s(self, most_tokens: int) -> float:
        """Estimate the duration, in seconds, of a step that computes the waiting prefills, at most `most_tokens` of
        them.

        The time per token is that of the largest recent step. If that step was small, the estimate is too long.
        """
        duration, tokens = max(self._recent.copy(), key=lambda step: step[1], default=(0.0, 0))
        return duration / tokens * min(self._prefill_tokens, most_tokens) if tokens else 0.0

    def drafted(self, tokens: int, accepted: int) -> None:
        """Count speculated tokens of a step."""
        self._draft_tokens += tokens
        self._accepted_tokens += accepted

    def stall_limit_s(self, most_tokens: int) -> float:
        """Return the seconds without a step, although there is work, after which an engine counts as hung.

        Args:
            most_tokens: the most that one step computes. A CPU engine computes a prompt in one step, whatever its
                length.
        """
        longest = self.longest_step_s
        patient = _STALL_PATIENCE * max(longest, self.prefill_s(most_tokens))
        return max(_STALL_S, min(_STALL_STEPS * longest, _STALL_STEPS_MOST_S), patient)

    def idle_for(self, now: float) -> float:
        """Return the seconds without a step while there is work; 0 without work."""
        return now - self._progress_at if self.live else 0.0

    def stats(
        self, now: float, batch_limit: int, token_budget: int, *, output_tokens_live: int, gpu_s_live: float
    ) -> EngineStats:
        """Return the state. An empty engine counts as idle: after its last step it may report nothing more."""
        running = min(self._running, self.live)
        return EngineStats(
            running=running,
            waiting=self.live - running,
            kv_usage=self._kv_usage if self.live else 0.0,
            prefill_tokens=self._prefill_tokens,
            batch_limit=batch_limit,
            token_budget=token_budget,
            steps=self._steps,
            busy_s=self._busy_s,
            open_s=self.idle_for(now),
            ended_gpu_s=self._ended_gpu_s,
            live_gpu_s=gpu_s_live,
            output_tokens=self._output_tokens + output_tokens_live,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            preemptions=self._preemptions,
            draft_tokens=self._draft_tokens,
            accepted_draft_tokens=self._accepted_tokens,
        )
