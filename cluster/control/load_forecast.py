"""Load that the replica policy plans for.

The load is checked against the sequences that run, and averaged so that scatter which no start could follow does not
count. It includes the growth to expect while a replica starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.control.snapshot import GroupSnapshot
from cluster.control.step_model import Shape

_TREND_TICKS = 8
"""Ticks below which there is no trend."""


@dataclass(frozen=True, slots=True)
class LoadRules:
    """Constants of the load forecast."""

    steady_starts: float = 1.0
    """Cold starts that work is averaged over. A peak that ends before a new replica is ready calls for none."""
    steady_least_s: float = 60.0
    steady_most_s: float = 300.0
    jump: float = 0.25
    """Work over the average by more than this part may be a real change, and counts at once."""
    jump_deviations: float = 3.5
    """It must also exceed the average by this many standard deviations of the few requests that the average rests
    on."""
    burst_s: float = 30.0
    """Seconds of arrivals that count at once if they are out of all proportion; 0 switches this off."""
    burst_deviations: float = 3.5
    """A burst exceeds the average by at least this many standard deviations. `burst_variance` gives the scatter."""
    burst_least: float = 2.0
    """A burst is at least this many times the average."""
    burst_usual_s: float = 900.0
    """A burst also exceeds the average of this many seconds: arrivals after a lull are no burst."""
    burst_variance: float = 4.0
    """Variance over mean of the number of requests, as if all requests were alike. It is above 1 because requests come
    in groups and differ in length."""
    lengths_s: float = 180.0
    """Seconds in which requests are searched for a rise of their work each; 0 switches this off."""
    lengths_deviations: float = 4.0
    """The rise counts when the mean exceeds the earlier mean by this many standard errors."""
    lengths_jump: float = 0.25
    """The rise must also be at least this part. A smaller one is left to the average."""
    lengths_least: float = 12.0
    """Requests needed before and after the rise."""
    lengths_known_s: float = 1800.0
    """Seconds over which the variance of requests is measured."""
    lengths_variance: float = 4.0
    """Variance of the work of single requests over the square of its mean, until enough was measured."""
    lengths_variance_least: float = 1.0
    """Lower bound of that variance."""
    lengths_fewer: float = 2.0
    """Requests count as fewer than usual when they are below by this many standard deviations."""
    known_after_s: float = 300.0
    """Seconds at the start in which nothing is compared and no burst is seen. Output lengths are known at the end only,
    those of short requests first, and averages begin at 0."""
    rate_window_s: float = 60.0
    """Window of the exponential average of the demand's rates, seconds."""
    check_s: float = 300.0
    """Seconds over which the running sequences are compared with the expected ones; 0 never compares."""
    check_most: float = 2.0
    """Largest correction. Its inverse is the smallest."""
    check_few: float = 10.0
    """Requests behind the rates at which the ratio of averages makes up half of a look's ratio."""
    check_prior: float = 1.0
    """Sequences that are added to both sides of the ratio: few sequences tell little."""
    check_silence: float = 5.0
    """Expected sequences above which no running ones mean that no replica has reported."""
    check_waiting: float = 0.02
    """Waiting requests as a part of the running ones. More of them mean that replicas are full, and tell nothing about
    the load."""
    trend_errors: float = 8.0
    """Standard errors from which a trend counts; 0 switches trends off."""
    trend_starts: float = 1.5
    """Cold starts over which a trend is searched for."""
    trend_least_s: float = 180.0
    trend_most_s: float = 600.0
    trend_most: float = 1.5
    """Largest growth that is planned for."""


@dataclass(frozen=True, slots=True)
class Need:
    """Findings of one tick."""

    at: float
    work: float
    """Replica-seconds that arrived per second."""
    replicas: int
    """Replicas needed, before rails."""
    requests: float = 0.0
    """Requests that arrived per second, averaged as `work` is."""
    shape: Shape | None = None
    """Mean of those requests; None where it was not recorded."""


@dataclass(frozen=True, slots=True)
class Check:
    """Comparison of the running sequences with the expected ones, by Little's law: rate times time inside."""

    factor: float = 1.0
    """Factor that work is multiplied with."""
    running: float = 0.0
    """Running sequences, averaged."""
    expected: float = 0.0
    """Expected sequences, averaged alike; 0 before the first look."""

    def next(self, seen: GroupSnapshot, passed_s: float, rules: LoadRules) -> Check:
        """Return the check after one more tick. Where requests wait, the running sequences show the room and not the
        load, so nothing is learned.
        """
        if not rules.check_s or seen.model is None or not seen.ready or passed_s <= 0:
            return self
        if seen.filled or seen.waiting > max(1.0, rules.check_waiting * seen.running):
            return self
        batch = max(1.0, seen.running / seen.ready)
        now = sum(
            each.rate * max(1.0, each.shape.output_tokens) * seen.model.itl(batch, each.shape.mix)
            for each in seen.demands
        )
        if (now <= 0 and not self.expected) or (seen.running <= 0 and now > rules.check_silence):
            return self
        if not self.expected:
            # There is nothing to correct at first.
            return Check(self.factor, self.factor * now, now)
        part = 1.0 - math.exp(-passed_s / rules.check_s)
        running = self.running + part * (seen.running - self.running)
        expected = self.expected + part * (now - self.expected)
        # With few requests the mean of the ratios is far above the ratio of the means. With many it follows sooner.
        few = rules.check_few / (rules.check_few + 2.0 * rules.rate_window_s * sum(each.rate for each in seen.demands))
        whole = (running + rules.check_prior) / (expected + rules.check_prior)
        late = seen.running / now if now > 0 and seen.running else whole
        ratio = few * _bounded(whole, rules) + (1.0 - few) * _bounded(late, rules)
        return Check(self.factor + part * (ratio - self.factor), running, expected)


def _bounded(ratio: float, rules: LoadRules) -> float:
    return min(rules.check_most, max(1.0 / rules.check_most, ratio))


def steady_window_s(cold_start_s: float, rules: LoadRules) -> float:
    """Return the seconds that work is averaged over."""
    return min(rules.steady_most_s, max(rules.steady_least_s, rules.steady_starts * cold_start_s))


def steady_work(work: float, requests: float, needs: Sequence[Need], since: float, rules: LoadRules) -> float:
    """Return the average of the work since a time, or the work itself where it has jumped up.

    Args:
        work: replica-seconds per second, an exponential average.
        requests: arrivals per second, averaged alike.
        needs: earlier ticks.
        since: on the same clock as the ticks.
        rules: the constants.
    """
    lately = [each.work for each in needs if each.at > since]
    mean = (work + sum(lately)) / (1 + len(lately))
    # An exponential average rests on what came in twice its window.
    scatter = math.sqrt(rules.burst_variance / max(1.0, 2.0 * rules.rate_window_s * requests))
    return work if work > (1.0 + max(rules.jump, rules.jump_deviations * scatter)) * mean else mean


def burst_work(work: float, requests: float, needs: Sequence[Need], at: float, rules: LoadRules) -> float | None:
    """Return the work per second of the last moments where it is far above the average, else None. The result lies
    half-way between the two, because a short time tells no more.

    Args:
        work: replica-seconds per second, an exponential average.
        requests: arrivals per second, averaged alike.
        needs: earlier ticks, with the same averages.
        at: now.
        rules: the constants.
    """
    before = next((each for each in reversed(needs) if each.at <= at - rules.burst_s + 1e-6), None)
    if not rules.burst_s or before is None or before.work <= 0 or work <= before.work:
        return None
    # The average forgets at a known pace, so the arrivals since then are what was added to it.
    kept = math.exp(-(at - before.at) / rules.rate_window_s)
    came = (work - kept * before.work) / (1.0 - kept)
    lately = [each.work for each in needs if each.at > at - rules.burst_usual_s]
    usual = max(before.work, sum(lately) / max(1, len(lately)))
    scatter = math.sqrt(rules.burst_variance / max(1.0, requests * usual / work * (at - before.at)))
    enough = max(rules.burst_least, 1.0 + rules.burst_deviations * scatter)
    return (came + work) / 2 if came > enough * usual else None


def growth(needs: Sequence[Need], work: float, at: float, ahead_s: float, rules: LoadRules) -> float:
    """Return the factor by which `work` grows within `ahead_s` if it goes on as lately; 1 where that may be chance.

    A straight line is fitted through the recent ticks by least squares. Its slope counts where it is many times its
    standard error. Neighbouring ticks share most of what they average, which makes the error larger.
    """
    span_s = min(rules.trend_most_s, max(rules.trend_least_s, rules.trend_starts * ahead_s))
    points = [(each.at - at, each.work) for each in needs if each.at > at - span_s]
    if not rules.trend_errors or len(points) < _TREND_TICKS or work <= 0:
        return 1.0
    middle = sum(time for time, _ in points) / len(points)
    mean = sum(value for _, value in points) / len(points)
    spread = sum((time - middle) ** 2 for time, _ in points)
    if spread <= 0:
        return 1.0
    slope = sum((time - middle) * (value - mean) for time, value in points) / spread
    left = sum((value - mean - slope * (time - middle)) ** 2 for time, value in points) / (len(points) - 2)
    alike = max(1.0, 2.0 * rules.rate_window_s * len(points) / span_s)
    if slope <= rules.trend_errors * math.sqrt(alike * left / spread):
        return 1.0
    expected = mean + slope * (ahead_s + rules.rate_window_s - middle)
    return max(1.0, min(rules.trend_most, expected / work))
