"""What the slow loop takes the load to be: checked against what runs, without the scatter that no start can follow, and
what it may grow by while a replica starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.control.snapshot import GroupSnapshot
from cluster.control.step_model import Shape

_TREND_TICKS = 8
"""Fewer make no trend."""


@dataclass(frozen=True, slots=True)
class LoadRules:
    """Are the constants."""

    steady_starts: float = 1.0
    """Work is averaged over so many cold starts: what is over before a replica is there calls for none."""
    steady_least_s: float = 60.0
    steady_most_s: float = 300.0
    jump: float = 0.25
    """More than this part over the average may be no chance, and counts at once."""
    jump_deviations: float = 3.5
    """And more than so many standard deviations of the few requests that an average rests on."""
    burst_s: float = 30.0
    """What came in so long counts at once if it is out of all proportion; 0 never looks."""
    burst_deviations: float = 3.5
    """So many standard deviations over the average, of work that scatters as `burst_variance` says."""
    burst_least: float = 2.0
    """And at least so many times the average."""
    burst_usual_s: float = 900.0
    """And over the average of so long: what comes after a lull is no burst."""
    burst_variance: float = 4.0
    """Variance over mean of the number of requests, as if all were alike: they come in groups, and their lengths
    differ."""
    lengths_s: float = 180.0
    """Requests that ask for more work each than those before are looked for in the last while; 0 never looks."""
    lengths_deviations: float = 4.0
    """They count where their mean is so many standard errors over that of those before."""
    lengths_jump: float = 0.25
    """And by this part of it; less is left to the average."""
    lengths_least: float = 12.0
    """Fewer requests, before or after, say nothing."""
    lengths_known_s: float = 1800.0
    """How much requests differ is taken from so long a time."""
    lengths_variance: float = 4.0
    """Variance of the work of single requests over the square of its mean, while too little was seen of it."""
    lengths_variance_least: float = 1.0
    """It is not taken to be less."""
    lengths_fewer: float = 2.0
    """Fewer requests than usual by so many standard deviations are fewer, and no chance."""
    known_after_s: float = 300.0
    """Before, nothing is compared and no burst is seen: output lengths are known at their end, those of short ones
    first, and averages begin at 0."""
    rate_window_s: float = 60.0
    """Over which the demand's rates are averaged, exponentially."""
    check_s: float = 300.0
    """What runs is compared with what should run over so long; 0 never compares."""
    check_most: float = 2.0
    """Largest correction, and the inverse of the smallest."""
    check_few: float = 10.0
    """Where the rates rest on so many requests, half of what a look says is the ratio of averages."""
    check_prior: float = 1.0
    """So many sequences as expected are added to both sides: a few say little."""
    check_silence: float = 5.0
    """Where more should run than this, and none does, nobody has reported."""
    check_waiting: float = 0.02
    """More waiting requests than this part of those that run say that replicas are full, and nothing of the load."""
    trend_errors: float = 8.0
    """A trend counts from so many standard errors on; 0 plans for none."""
    trend_starts: float = 1.5
    """It is looked for over so many cold starts."""
    trend_least_s: float = 180.0
    trend_most_s: float = 600.0
    trend_most: float = 1.5
    """Largest growth that is planned for."""


@dataclass(frozen=True, slots=True)
class Need:
    """Is what one tick found."""

    at: float
    work: float
    """Replica-seconds that arrived per second."""
    replicas: int
    """Needed, before rails."""
    requests: float = 0.0
    """That arrived per second, averaged as `work` is."""
    shape: Shape | None = None
    """Of those requests on average; None where nobody wrote it down."""


@dataclass(frozen=True, slots=True)
class Check:
    """Compares the sequences that run with those that should, by Little's law: rate times time inside."""

    factor: float = 1.0
    """What work has to be multiplied with."""
    running: float = 0.0
    """Sequences that ran, averaged."""
    expected: float = 0.0
    """Those that should have run, averaged alike; 0 before the first look."""

    def next(self, seen: GroupSnapshot, passed_s: float, rules: LoadRules) -> Check:
        """Take a tick's values. Where requests wait, what runs is what fits, and nothing is learnt."""
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
            # Begins with nothing to correct.
            return Check(self.factor, self.factor * now, now)
        part = 1.0 - math.exp(-passed_s / rules.check_s)
        running = self.running + part * (seen.running - self.running)
        expected = self.expected + part * (now - self.expected)
        # Of few requests the mean of the ratios is far more than the ratio of the means. Of many it follows sooner.
        few = rules.check_few / (rules.check_few + 2.0 * rules.rate_window_s * sum(each.rate for each in seen.demands))
        whole = (running + rules.check_prior) / (expected + rules.check_prior)
        late = seen.running / now if now > 0 and seen.running else whole
        ratio = few * _bounded(whole, rules) + (1.0 - few) * _bounded(late, rules)
        return Check(self.factor + part * (ratio - self.factor), running, expected)


def _bounded(ratio: float, rules: LoadRules) -> float:
    return min(rules.check_most, max(1.0 / rules.check_most, ratio))


def steady_window_s(cold_start_s: float, rules: LoadRules) -> float:
    """Return over how long work is averaged."""
    return min(rules.steady_most_s, max(rules.steady_least_s, rules.steady_starts * cold_start_s))


def steady_work(work: float, requests: float, needs: Sequence[Need], since: float, rules: LoadRules) -> float:
    """Return the average of the work since a time, unless it has jumped up.

    Args:
        work: replica-seconds per second, an exponential average.
        requests: that arrive per second, averaged alike.
        needs: earlier ticks.
        since: the same clock as theirs.
        rules: the constants.
    """
    lately = [each.work for each in needs if each.at > since]
    mean = (work + sum(lately)) / (1 + len(lately))
    # An exponential average rests on what came in twice its window.
    scatter = math.sqrt(rules.burst_variance / max(1.0, 2.0 * rules.rate_window_s * requests))
    return work if work > (1.0 + max(rules.jump, rules.jump_deviations * scatter)) * mean else mean


def burst_work(work: float, requests: float, needs: Sequence[Need], at: float, rules: LoadRules) -> float | None:
    """Return the work per second of the last moments where it is far above the average, else None. Half-way between the
    two: what came in so short a time is not known any better.

    Args:
        work: replica-seconds per second, an exponential average.
        requests: that arrive per second, averaged alike.
        needs: earlier ticks, the same averages in them.
        at: now.
        rules: the constants.
    """
    before = next((each for each in reversed(needs) if each.at <= at - rules.burst_s + 1e-6), None)
    if not rules.burst_s or before is None or before.work <= 0 or work <= before.work:
        return None
    # The average forgets at a known pace, so what was added to it since is what came.
    kept = math.exp(-(at - before.at) / rules.rate_window_s)
    came = (work - kept * before.work) / (1.0 - kept)
    lately = [each.work for each in needs if each.at > at - rules.burst_usual_s]
    usual = max(before.work, sum(lately) / max(1, len(lately)))
    scatter = math.sqrt(rules.burst_variance / max(1.0, requests * usual / work * (at - before.at)))
    enough = max(rules.burst_least, 1.0 + rules.burst_deviations * scatter)
    return (came + work) / 2 if came > enough * usual else None


def growth(needs: Sequence[Need], work: float, at: float, ahead_s: float, rules: LoadRules) -> float:
    """Return by what factor `work` will have grown in `ahead_s` if it goes on as lately; 1 where that may be chance.

    A straight line through the ticks of the last while, by least squares. Its slope counts where it is many times its
    standard error; neighbouring ticks share most of what they average, which makes the error larger.
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
