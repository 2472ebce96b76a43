"""What a pool promises, what it expects of the time to come, and what it gives up."""

from __future__ import annotations

from cluster.autoscaler.operating_point import point_in_force
from cluster.control.settings import operating_point
from cluster.queue.heartbeats import RouterBeatReply
from cluster.settings import PoolSettings
from penstock.models import RequestClass
from penstock.values.steps import Relief
from router.admission.demand import DemandCounter
from router.admission.estimate import PoolEstimate
from router.admission.shedding import late_after_s, shed_after_s
from router.generation.choice import Choice
from router.generation.metering import AttemptMetering


class AdmissionControl:
    """Hears of it in heartbeats, and learns from what ran.

    Args:
        settings: have the operating point that holds until another one is heard.
        late_last: whether requests let others pass once they are late.
    """

    def __init__(self, settings: PoolSettings, *, late_last: bool) -> None:
        self._configured = operating_point(settings)
        self._late_last = late_last
        self.estimate = PoolEstimate()
        self.demand = DemandCounter(self._configured)
        self.relief = Relief.NONE
        """What the pool gives up for want of replicas, as its autoscaler last said."""

    def heard(self, reply: RouterBeatReply) -> None:
        """Learn from a heartbeat's answer."""
        self.estimate.beat(reply)
        # A store that lost it gets it back from the autoscaler; until then what was last heard holds.
        if reply.point is not None:
            self.demand.point = point_in_force(reply.point, self._configured)
        self.relief = Relief.of(reply.relief)

    def learn(self, account: AttemptMetering) -> None:
        """Learn from a choice's last attempt."""
        if account.attempts and (last := account.attempts[-1]).end.output_tokens:
            tokens = account.fresh_prompt_tokens, last.end.output_tokens
            self.estimate.ran(*tokens, last.prefill_s, last.end.decode_s)

    def shed_after_s(self, request_class: RequestClass) -> float | None:
        """Return the time to the first token, in seconds, beyond which a request is turned away; None for never."""
        return shed_after_s(self.demand.point.of(request_class), self.relief)

    def late_after_ms(self, request_class: RequestClass) -> int:
        """Return how long a request may wait before it lets others pass, milliseconds; 0 is for ever."""
        if not self._late_last:
            return 0
        after_s = late_after_s(self.demand.point.of(request_class), self.estimate.first_token_s)
        return 0 if after_s is None else max(1, int(after_s * 1000))

    def wait_s(self, choice: Choice) -> float | None:
        """Estimate how long a waiting choice still waits, seconds. Nobody can tell for one that others may pass."""
        return None if choice.late else self.estimate.wait_s(choice.entry.request_class, choice.position)
