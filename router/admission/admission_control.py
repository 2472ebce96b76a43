"""Admission control of one pool: its operating point, its wait estimates, and the relief in force."""

from __future__ import annotations

from cluster.autoscaler.operating_point import point_in_force
from cluster.control.settings import operating_point
from cluster.queue.heartbeats import RouterBeatReply
from cluster.settings import PoolSettings
from penstock.models import RequestClass
from penstock.values.steps import Relief
from router.admission.budgets import Budgets
from router.admission.demand import DemandCounter
from router.admission.refusals import Refusals
from router.admission.shedding import late_after_s, shed_after_s
from router.admission.wait_estimate import PoolEstimate
from router.generation.choice import Choice
from router.generation.metering import AttemptMetering


class AdmissionControl:
    """Admission control of one pool: SLO, wait estimates, load shedding. It learns from heartbeats and ended attempts.

    Args:
        settings: those of the pool; their operating point holds until a heartbeat brings another one.
        late_last: whether a request lets others pass once it is late.
    """

    def __init__(self, settings: PoolSettings, *, late_last: bool) -> None:
        self._configured = operating_point(settings)
        self._late_last = late_last
        self.estimate = PoolEstimate()
        self.refusals = Refusals()
        self.budgets = Budgets()
        self.demand = DemandCounter(self._configured)
        self.price_per_gpu_hour: float | None = None
        """Price of an accelerator by the operating point that was set last; None where none was ever set."""
        self.relief = Relief.NONE
        """Step of relief that the autoscaler ordered last: what the pool gives up because it lacks replicas."""

    def heard(self, reply: RouterBeatReply) -> None:
        """Take a heartbeat's answer: estimates, operating point and relief."""
        self.estimate.beat(reply)
        # The autoscaler restores a point that the store lost. Until then the last point holds.
        if reply.point is not None:
            self.demand.point = point = point_in_force(reply.point, self._configured)
            self.price_per_gpu_hour = point.price_per_gpu_hour
        self.relief = Relief.of(reply.relief)

    def learn(self, metering: AttemptMetering) -> None:
        """Learn from a choice's last attempt."""
        if metering.attempts and (last := metering.attempts[-1]).end.output_tokens:
            tokens = metering.fresh_prompt_tokens, last.end.output_tokens
            self.estimate.ran(*tokens, last.prefill_s, last.end.decode_s)

    def shed_after_s(self, request_class: RequestClass) -> float | None:
        """Return the time to first token, in seconds, beyond which a request is refused; None for never."""
        return shed_after_s(self.demand.point.of(request_class), self.relief)

    def late_after_ms(self, request_class: RequestClass) -> int:
        """Return how long a request may wait before it lets others pass, in milliseconds; 0 for ever."""
        if not self._late_last:
            return 0
        after_s = late_after_s(self.demand.point.of(request_class), self.estimate.first_token_s)
        return 0 if after_s is None else max(1, int(after_s * 1000))

    def wait_s(self, choice: Choice) -> float | None:
        """Estimate how long a waiting choice still waits, in seconds; None for one that newer ones may overtake."""
        return None if choice.wait.late else self.estimate.wait_s(choice.entry.request_class, choice.wait.position)
