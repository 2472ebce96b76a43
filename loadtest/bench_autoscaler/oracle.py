"""The plan that knows the future: whole replicas, each ordered one cold start before it is needed.

The need follows from the arrivals with their true lengths, each request's work spread over the time it runs. A replica
between two needs stays if starting anew would cost as much. What remains is how full replicas may be, over how long the
need is smoothed, and of those plans the cheapest that reaches the attainment in the same simulator is the oracle.
It is the cheapest of a family of plans, not of all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cluster.control.step_model import Shape
from loadtest.bench_autoscaler.scenarios import Case, true_model, work_of
from loadtest.simulate.policies import PoolSnapshot

_BIN_S = 15.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Says how many replicas there are to be, those that start included, by the time; a slow policy."""

    counts: tuple[int, ...]
    """For each 15 s."""

    def decide(self, snapshot: PoolSnapshot) -> int:
        """See `SlowPolicy.decide`."""
        return self.counts[min(len(self.counts) - 1, int(snapshot.now_s // _BIN_S))]


def plan(case: Case, fill: float, smooth_s: float = 60.0) -> Plan:
    """Plan for replicas that are at most so full, of class-less or interactive work and batch work alike."""
    load = _load(case)
    width = max(1, round(smooth_s / _BIN_S))
    smoothed = np.convolve(np.pad(load, (width // 2, width - 1 - width // 2), "edge"), np.ones(width) / width, "valid")
    need = np.maximum(1, np.ceil(smoothed / fill - 1e-9)).astype(int)
    ahead = math.ceil(case.setup.cold_start_s / _BIN_S)
    counts = np.zeros(len(need), dtype=int)
    for level in range(1, int(need.max()) + 1):
        busy = need >= level
        counts += _kept(busy, ahead)
    return Plan(tuple(int(each) for each in counts))


def _kept(busy: np.ndarray[tuple[int], np.dtype[np.bool_]], ahead: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return when the replica of one level is there or starts."""
    there = busy.copy()
    for place in np.flatnonzero(busy):
        # Its cold start, and with it gaps that are no longer than one.
        there[max(0, place - ahead) : place] = True
    return there


def _load(case: Case) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    engine = case.setup.engine
    model = true_model(engine)
    last = case.trace[-1].arrival_s
    bins = np.zeros(int(last // _BIN_S) + 2)
    for each in case.trace:
        work = work_of(each, engine)
        # As long as it runs in a batch that is full.
        mean = model.itl(engine.max_num_seqs, Shape(each.prompt_tokens, each.output_tokens).mix)
        length = max(_BIN_S, min(engine.max_num_seqs * work, each.output_tokens * mean))
        first, end = each.arrival_s / _BIN_S, (each.arrival_s + length) / _BIN_S
        for place in range(int(first), min(len(bins), int(end) + 1)):
            part = min(end, place + 1) - max(first, place)
            bins[place] += work * part / (end - first) / _BIN_S
    return bins
