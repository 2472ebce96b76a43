"""Demand on a pool, counted when requests arrive. The autoscaler sizes the pool by it."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence

from cluster.announced.arrivals import TenantCounts
from cluster.autoscaler.router_report import JobWork, empty_counts, pack_report
from cluster.errors import InvalidRequestError, QuarantinedError, SlowReaderError
from penstock.models import RequestClass
from penstock.v1 import types_pb2 as types
from penstock.values.slo import ClassSlo, OperatingPoint
from router.generation.choice import Choice

_CLIENTS_OWN = (InvalidRequestError, QuarantinedError, SlowReaderError)
_COMPLETE = (types.FINISH_REASON_STOP, types.FINISH_REASON_LENGTH, types.FINISH_REASON_TOOL_CALLS)

LEARNING = 0.02
"""Weight of a new request in the averages."""


class Verdict(enum.Enum):
    """Outcome of the SLO that one choice of a request was promised."""

    MET = "met"
    TTFT = "ttft"
    """The first token came too late."""
    ITL = "itl"
    """The tokens came too slowly."""
    BOTH = "ttft_and_itl"
    NOT_SERVED = "not_served"
    """Refused because there was no room, or failed."""


class DemandCounter:
    """Demand on one pool since the start. Belongs to the router's loop; `report` may be called from another thread.

    Output lengths and cached prompt tokens are known only when a request ends. So a new request is counted with the
    recent averages of its class.
    """

    def __init__(self, point: OperatingPoint) -> None:
        self.point = point
        """Operating point with the SLO that holds now."""
        self.verdicts = {(each, verdict): 0 for each in RequestClass for verdict in Verdict}
        """Outcomes of all choices with an SLO, since the start."""
        self._counts = empty_counts()
        self._outputs: dict[RequestClass, float] = {}
        self._cached: dict[RequestClass, float] = {}
        """Average part of the prompt that was cached, by class."""
        self._tenants: dict[str, TenantCounts] = {}

    def follow(self, tenants: Collection[str]) -> None:
        """Count these tenants one by one from now on, and no others: they have announced load."""
        if tenants != self._tenants.keys():
            # Replaced and not changed: another thread may report meanwhile.
            self._tenants = {tenant: self._tenants.get(tenant, TenantCounts()) for tenant in sorted(tenants)}

    def arrived(
        self,
        request_class: RequestClass,
        prompt_tokens: int,
        max_tokens: int,
        usual_tokens: int,
        choices: int,
        *,
        tenant: str = "",
    ) -> None:
        """Count a request.

        Args:
            request_class: its class.
            prompt_tokens: length of its prompt.
            max_tokens: most output tokens of a choice.
            usual_tokens: output tokens to assume for a choice until there is an average.
            choices: sequences that it asks for.
            tenant: who sends it.
        """
        mine = self._counts[request_class]
        cached = choices * prompt_tokens * self._cached.get(request_class, 0.0)
        output = choices * min(max_tokens, self._outputs.get(request_class, usual_tokens))
        mine.requests += choices
        mine.prompt_tokens += choices * prompt_tokens
        mine.cached_tokens += cached
        mine.output_tokens += output
        if (own := self._tenants.get(tenant)) is not None:
            self._tenants[tenant] = own.plus(TenantCounts(choices, choices * prompt_tokens, cached, output))

    def over_quota(self, tenant: str, choices: int) -> None:
        """Count a request that its tenant's quota refused. No replica is needed for it, but the tenant sends it."""
        if (own := self._tenants.get(tenant)) is not None:
            self._tenants[tenant] = own.plus(TenantCounts(refused=choices))

    def ended(self, request_class: RequestClass, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """Update the averages with a choice that ended well."""
        self._outputs[request_class] = _mixed(self._outputs.get(request_class), output_tokens)
        if prompt_tokens > 0:
            share = min(1.0, cached_tokens / prompt_tokens)
            self._cached[request_class] = _mixed(self._cached.get(request_class), share)

    def judge(self, request_class: RequestClass, ttft_s: float | None, itl_s: float | None) -> None:
        """Compare a request that ended with its SLO, and count the outcome. A time that it does not have is None.

        Args:
            request_class: its class.
            ttft_s: seconds from arrival to the first token.
            itl_s: mean seconds between its tokens. The SLO is about the 95th percentile of all gaps, which is not kept
                per request; replicas hold that one.
        """
        slo = self.point.of(request_class)
        if not slo.empty:
            self._count(request_class, compare(slo, ttft_s, itl_s))

    def over(self, choice: Choice) -> None:
        """Count a choice that is over. A choice that its client or its deadline stopped says nothing about the pool,
        nor does one that failed by its client's own fault.
        """
        end, request_class = choice.end, choice.entry.request_class
        if isinstance(choice.error, _CLIENTS_OWN):
            return
        if choice.error is not None:
            self.turned_away(request_class)
        elif end is not None and end.finish_reason in _COMPLETE:
            self.ended(request_class, choice.entry.prompt_tokens, choice.metering.cached_tokens, choice.tokens)
            self.judge(request_class, *_times(choice))

    def turned_away(self, request_class: RequestClass) -> None:
        """Count a request that was refused because there was no room, or failed: a miss of the SLO."""
        if not self.point.of(request_class).empty:
            self._count(request_class, Verdict.NOT_SERVED)

    def _count(self, request_class: RequestClass, verdict: Verdict) -> None:
        self.verdicts[request_class, verdict] += 1
        self._counts[request_class].judged += 1
        self._counts[request_class].met += verdict is Verdict.MET

    def report(self, jobs: Sequence[JobWork] = ()) -> bytes:
        """Return the counts since the start and the remaining work of jobs, packed for the heartbeat."""
        return pack_report(self._counts, jobs, self._tenants)


def _mixed(old: float | None, new: float) -> float:
    return new if old is None else old + LEARNING * (new - old)


def compare(slo: ClassSlo, ttft_s: float | None, itl_s: float | None) -> Verdict:
    """Compare times with an SLO; a time that a choice does not have is None."""
    late = slo.ttft_p99_s is not None and ttft_s is not None and ttft_s > slo.ttft_p99_s
    slow = slo.itl_p95_s is not None and itl_s is not None and itl_s > slo.itl_p95_s
    match late, slow:
        case True, True:
            return Verdict.BOTH
        case True, False:
            return Verdict.TTFT
        case False, True:
            return Verdict.ITL
        case _:
            return Verdict.MET


def verdict_of(choice: Choice, slo: ClassSlo) -> Verdict | None:
    """Return the outcome of a choice that is over; None where it has no SLO, or says nothing about the pool."""
    if slo.empty or isinstance(choice.error, _CLIENTS_OWN):
        return None
    if choice.error is not None:
        return Verdict.NOT_SERVED
    complete = choice.end is not None and choice.end.finish_reason in _COMPLETE
    return compare(slo, *_times(choice)) if complete else None


def _times(choice: Choice) -> tuple[float | None, float | None]:
    """Return time to first token and mean time between tokens, in seconds."""
    ttft_s = choice.first_token_at - choice.wait.arrived_at if choice.first_token_at else None
    end = choice.end
    return ttft_s, end.decode_s / (end.output_tokens - 1) if end is not None and end.output_tokens > 1 else None
