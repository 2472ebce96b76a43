"""How much of what tenants announce is believed: by how much of it came before. Pure.

What counts as come is what a tenant sends. Its quota may be smaller by then than when it announced the load: what the
quota refuses says nothing against the tenant's word, but brings no work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster.announced.arrivals import Arrivals, RouterCounts, TenantRate
from cluster.announced.load import AnnouncedLoad
from cluster.control.step_model import Shape
from cluster.forecast.announced import AnnouncedRise, AnnouncedWork

MOST_TENANTS = 256
"""Most tenants whose record is kept. Those that were judged least go first."""


@dataclass(frozen=True, slots=True)
class BeliefRules:
    """Constants of the belief."""

    first_minutes: float = 10.0
    """Announced minutes that a tenant's first announcement counts as if they had come true."""
    memory_minutes: float = 240.0
    """Announced minutes over which the past fades."""
    grace_s: float = 120.0
    """Seconds from the beginning of an announcement in which nothing is judged: rates are averages, and people are a
    little late."""
    longest_s: float = 60.0
    """Longest time between two looks that counts."""


@dataclass(frozen=True, slots=True)
class TenantBelief:
    """How right one tenant has been."""

    part: float = 1.0
    """Part of the announced work that came, of late. More than the announced counts as all of it."""
    judged: float = 0.0
    """Announced minutes that this rests on."""

    def next(self, part: float, minutes: float, rules: BeliefRules) -> TenantBelief:
        """Return the belief after more announced minutes, in which that part of the work came."""
        judged = min(rules.memory_minutes, self.judged + minutes)
        weight = minutes / (rules.first_minutes + judged)
        return TenantBelief(self.part + weight * (min(1.0, part) - self.part), judged)


@dataclass(frozen=True, slots=True)
class Belief:
    """State about all tenants who announced load in a pool. A leader hands it to the next one."""

    arrivals: Arrivals = field(default_factory=Arrivals)
    tenants: Mapping[str, TenantBelief] = field(default_factory=dict)

    def of(self, tenant: str) -> TenantBelief:
        """Return what is known of a tenant."""
        return self.tenants.get(tenant, TenantBelief())

    def up_to(self, at: float) -> Belief:
        """Return the state with no time after `at`."""
        if self.arrivals.at is None or self.arrivals.at <= at:
            return self
        return replace(self, arrivals=replace(self.arrivals, at=at))


WorkOf = Callable[[Shape], float]
"""Function that returns the replica-seconds of a request."""


@dataclass(frozen=True, slots=True)
class Announced:
    """Announced load of a pool at one moment, with what is needed to turn it into work."""

    at: float
    """Now, seconds of pool time."""
    loads: Sequence[AnnouncedLoad]
    usual: Shape
    """Request to assume where neither announcement nor arrivals tell."""
    work_of: WorkOf

    def judge(self, belief: Belief, counters: RouterCounts, rules: BeliefRules) -> Belief:
        """Return the belief after a look at what came."""
        before, announced = belief.arrivals.at, self._by_tenant()
        arrivals = belief.arrivals.update(self.at, counters, announced.keys())
        if arrivals is belief.arrivals:
            # Nobody told what came.
            return belief
        tenants = dict(belief.tenants)
        minutes = min(rules.longest_s, self.at - before) / 60.0 if before is not None else 0.0
        for tenant, own in announced.items() if minutes > 0 else ():
            begun = [load for load in own if load.starts_ms / 1000 <= self.at - rules.grace_s]
            expected = self._work(tenant, begun, self.at, arrivals)
            if expected > 0:
                part = self._sent(tenant, arrivals) / expected
                tenants[tenant] = belief.of(tenant).next(part, minutes, rules)
        if len(tenants) > MOST_TENANTS:
            known = sorted(tenants, key=lambda tenant: tenants[tenant].judged, reverse=True)
            tenants = {tenant: tenants[tenant] for tenant in known[:MOST_TENANTS]}
        return Belief(arrivals, tenants)

    def foresee(self, belief: Belief, soon_s: float, within_s: float = 0.0) -> AnnouncedWork | None:
        """Return the work that is believed to come beyond what comes already; None without any.

        Args:
            belief: that of now.
            soon_s: seconds until a replica that is ordered now is ready.
            within_s: how far to look ahead, if that is longer.
        """
        added = list[AnnouncedRise]()
        recent = False
        for tenant, own in self._by_tenant().items():
            added += self._added(tenant, own, belief, max(soon_s, within_s))
            limited = belief.arrivals.rates.get(tenant, TenantRate()).limited
            begun_s = [self.at - load.starts_ms / 1000 for load in own]
            recent = recent or (not limited and any(0 <= each < soon_s for each in begun_s))
        now = AnnouncedRise(0.0, 0.0, 0.0)
        rises = list[AnnouncedRise]()
        for each in sorted(added, key=lambda each: each.in_s):
            last = rises[-1] if rises else now
            total = AnnouncedRise(each.in_s, last.soon + each.soon, last.said + each.said)
            if each.in_s <= soon_s:
                now = total
            else:
                rises.append(total)
        if not max(now.soon, *(each.soon for each in rises), 0.0):
            return None
        return AnnouncedWork(now.soon, now.said, recent, tuple(rises))

    def _added(self, tenant: str, own: Sequence[AnnouncedLoad], belief: Belief, within_s: float) -> list[AnnouncedRise]:
        """Return the moments at which a tenant announced more than for any before, with what each adds."""
        part, comes = belief.of(tenant).part, self._coming(tenant, belief.arrivals)
        # More than what comes its quota does not let through.
        limited = belief.arrivals.rates.get(tenant, TenantRate()).limited
        begins = {max(self.at, load.starts_ms / 1000) for load in own}
        found, said, soon = list[AnnouncedRise](), 0.0, 0.0
        # Between two beginnings the load only falls.
        for time in sorted(each for each in begins if each <= self.at + within_s):
            work = self._work(tenant, own, time, belief.arrivals)
            if work > said:
                counts = 0.0 if limited else max(0.0, part * work - comes)
                found.append(AnnouncedRise(time - self.at, counts - soon, work - said))
                said, soon = work, counts
        return found

    def course(self, belief: Belief, times: Sequence[float]) -> Sequence[AnnouncedWork]:
        """Return the announced work at given times, as far as it is known now.

        Args:
            belief: that of now.
            times: in seconds of pool time, none before now.
        """
        said, soon = [0.0] * len(times), [0.0] * len(times)
        for tenant, own in self._by_tenant().items():
            rate = belief.arrivals.rates.get(tenant, TenantRate())
            part, comes = belief.of(tenant).part, self._coming(tenant, belief.arrivals)
            known: dict[tuple[int, ...], float] = {}
            for place, time in enumerate(times):
                holding = tuple(number for number, load in enumerate(own) if load.holds(time))
                if holding not in known:
                    known[holding] = self._work(tenant, own, time, belief.arrivals)
                said[place] += known[holding]
                soon[place] += 0.0 if rate.limited else max(0.0, part * known[holding] - comes)
        return [AnnouncedWork(each, all_of_it, recent=False) for each, all_of_it in zip(soon, said, strict=True)]

    def _by_tenant(self) -> Mapping[str, Sequence[AnnouncedLoad]]:
        """Return what is not over, by tenant."""
        found = defaultdict[str, list[AnnouncedLoad]](list)
        for load in self.loads:
            if load.ends_ms / 1000 > self.at:
                found[load.tenant].append(load)
        return {tenant: found[tenant] for tenant in sorted(found)}

    def _coming(self, tenant: str, arrivals: Arrivals) -> float:
        """Return the work of a tenant that comes now, replica-seconds per second."""
        rate = arrivals.rates.get(tenant, TenantRate())
        return rate.requests * self.work_of(rate.shape or self.usual)

    def _sent(self, tenant: str, arrivals: Arrivals) -> float:
        """Return the same with what its quota refuses."""
        rate = arrivals.rates.get(tenant, TenantRate())
        return rate.asked * self.work_of(rate.shape or self.usual)

    def _work(self, tenant: str, own: Sequence[AnnouncedLoad], at: float, arrivals: Arrivals) -> float:
        """Return the work per second that a tenant announced for a time, as far as its quota lets it through."""
        work = requests = tokens = 0.0
        usual = arrivals.rates.get(tenant, TenantRate()).shape or self.usual
        holding = [load for load in own if load.holds(at)]
        for load in holding:
            shape = Shape(load.prompt_tokens, load.output_tokens) if load.tokens_per_request else usual
            each = max(1.0, shape.peak_tokens)
            rate = load.requests or load.tokens / each
            work, requests, tokens = work + rate * self.work_of(shape), requests + rate, tokens + rate * each
        bounds = (
            ([load.quota_requests for load in holding], requests),
            ([load.quota_tokens for load in holding], tokens),
        )
        parts = (min((most for most in quotas if most), default=asked) / asked for quotas, asked in bounds if asked)
        return work * min((1.0, *parts))
