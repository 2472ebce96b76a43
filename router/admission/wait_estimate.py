"""Estimates of how long requests wait and run, from what the pool did recently."""

from __future__ import annotations

from cluster.queue.heartbeats import RouterBeatReply
from penstock.models import ReplicaState, RequestClass

MEMORY_S = 10.0
"""How far back the rates look, seconds: they are exponentially weighted means."""
MEMORY_GRANTS = 10.0
"""Least number of grants that the rates look back to. Where requests run for minutes, a time without grants is usual. A
rate that fades within seconds would be almost 0 by then, and every request would be refused."""
EXPIRY_S = 180.0
"""Age at which rates are dropped. Rates are learnt only while requests wait. If they say that every request would wait
too long, all are refused; then no request waits, and nothing could correct the rates."""
LEARNING = 0.1
"""Weight of a new attempt in the means."""


class PoolEstimate:
    """Estimates of one pool, learnt from heartbeats and ended attempts. They are None until there is something to learn
    from.

    The wait is the number of entries ahead, divided by the rate at which the pool grants. A class waits for its own
    entries and for the more urgent ones. More urgent entries that will still arrive count as well: the rate of a class
    is what the more urgent classes leave.
    """

    def __init__(self) -> None:
        self._last: RouterBeatReply | None = None
        self._takers = True
        """Whether any replica took work at the last heartbeat."""
        self._learnt_ms = 0
        """When the rates were learnt last, in milliseconds of the pool's clock."""
        self._rates = [0.0, 0.0, 0.0]
        """Grants per second and class."""
        self._seen_s = 0.0
        """Time that the rates were learnt from."""
        self._prefill_s: float | None = None
        """Mean seconds per prompt token."""
        self._first_token_s: float | None = None
        self._token_s: float | None = None
        """Mean seconds per output token after the first."""
        self._output: float | None = None
        """Mean output tokens of a request."""

    # --- learning -----------------------------------------------------------------------------------------------------

    def beat(self, reply: RouterBeatReply) -> None:
        """Learn from a heartbeat.

        Rates are learnt only while requests wait, because an idle pool could grant more. They are learnt only while a
        replica takes work, because a cold start says nothing of the time after it.
        """
        last, self._last = self._last, reply
        takers, self._takers = self._takers, self._takers_now(reply)
        if last is None or last.run_id != reply.run_id:
            self._learnt_ms = reply.time_ms
            return
        seconds = (reply.time_ms - last.time_ms) / 1000
        if not 0 < seconds <= EXPIRY_S:
            # The clock was set, or the store was away: what was learnt is as old as it was.
            self._learnt_ms += reply.time_ms - last.time_ms
            return
        if not (any(last.waiting) and any(reply.waiting) and takers and self._takers):
            if reply.time_ms - self._learnt_ms > 1000 * EXPIRY_S:
                self._rates, self._seen_s = [0.0, 0.0, 0.0], 0.0
            return
        self._learnt_ms = reply.time_ms
        self._seen_s += seconds
        memory_s = min(self._seen_s, max(MEMORY_S, MEMORY_GRANTS / max(1e-9, sum(self._rates))))
        weight = min(1.0, seconds / memory_s)
        for number in range(3):
            rate = max(0, reply.granted[number] - last.granted[number]) / seconds
            self._rates[number] += weight * (rate - self._rates[number])

    def _takers_now(self, reply: RouterBeatReply) -> bool:
        if reply.replicas is None:
            # The heartbeat leaves the replicas out when they have not changed.
            return self._takers
        return any(replica.state is ReplicaState.READY for replica in reply.replicas)

    def ran(self, prompt_tokens: int, output_tokens: int, prefill_s: float, decode_s: float) -> None:
        """Learn from an attempt that ended."""
        if prompt_tokens > 0 and prefill_s > 0:
            self._prefill_s = _mixed(self._prefill_s, prefill_s / prompt_tokens)
            self._first_token_s = _mixed(self._first_token_s, prefill_s)
        if output_tokens > 1:
            self._token_s = _mixed(self._token_s, decode_s / (output_tokens - 1))
        self._output = _mixed(self._output, output_tokens)

    # --- estimates ----------------------------------------------------------------------------------------------------

    def wait_s(self, request_class: RequestClass, ahead: int) -> float | None:
        """Return how long an entry with `ahead` entries in front of it waits, in seconds."""
        total = sum(self._rates)
        if self._seen_s < 1.0 or total <= 0:
            return None
        urgent_waiting = sum(self._last.waiting[:request_class]) if self._last is not None else 0
        own = max(0, ahead - urgent_waiting) + 1
        # Its own class gets what the classes above leave.
        own_rate = total - sum(self._rates[:request_class])
        if own_rate <= 0:
            return (ahead + 1) / total
        return min(ahead, urgent_waiting) / total + own / own_rate

    @property
    def first_token_s(self) -> float | None:
        """Mean time from grant to first token, in seconds, over prompts of all lengths."""
        return self._first_token_s

    def run_s(self, prompt_tokens: int, max_tokens: int) -> float | None:
        """Return how long an attempt runs, in seconds, with an average output of at most `max_tokens`."""
        if self._prefill_s is None or self._output is None:
            return None
        following = max(0.0, min(max_tokens, self._output) - 1)
        if following and self._token_s is None:
            return None
        return prompt_tokens * self._prefill_s + following * (self._token_s or 0.0)


def _mixed(old: float | None, new: float) -> float:
    return new if old is None else old + LEARNING * (new - old)
