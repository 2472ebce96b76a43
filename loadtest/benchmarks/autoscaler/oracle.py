"""The plan that knows the future: whole replicas, each ordered one cold start before it is needed.

The need follows from the arrivals with their true lengths. Each request's work is spread over the time it runs, or its
prompt's work over the moments after it comes. Which of the two is nearer the truth depends on the load. Between two
needs a replica stays if a new start would cost as much. The replacement of a replica that is going to die is ordered in
time. The fill of replicas remains free. The oracle is the cheapest of all these plans that reaches the attainment in
the same simulator. It is the cheapest of a family of plans, not of all plans.

The nowcast is the same without foresight: it knows the need at every moment and orders it then. A policy that scales
with the load pays for finding the need out; its cost beyond the nowcast shows that. The nowcast pays for not knowing
the future; its cost beyond the oracle shows that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cluster.control.step_model import Shape
from loadtest.benchmarks.autoscaler.scenarios import Case, true_model, work_of
from loadtest.simulate.autoscalers.contract import PoolSnapshot

_BIN_S = 15.0


@dataclass(frozen=True, slots=True)
class ReplicaSchedule:
    """Slow policy with a fixed number of replicas for each time, starting ones included."""

    counts: tuple[int, ...]
    """Number of replicas for each 15 s."""

    def decide(self, snapshot: PoolSnapshot) -> int:
        return self.counts[min(len(self.counts) - 1, int(snapshot.now_s // _BIN_S))]


def plan(
    case: Case, fill: float, smooth_s: float = 60.0, *, prompts_first: bool = False, foresight: bool = True
) -> ReplicaSchedule:
    """Plan for replicas with this fill at most, for interactive and batch work, and work without classes, alike.

    Args:
        case: the load.
        fill: part of a replica's time; more than 1 relies on the wait that the SLO allows.
        smooth_s: seconds over which the need is averaged.
        prompts_first: whether a prompt's work is needed as it comes.
        foresight: whether replicas are ordered a cold start before they are needed. Otherwise they are ordered at that
            moment, and dead ones are replaced after their death.
    """
    load = _load(case, prompts_first)
    width = max(1, round(smooth_s / _BIN_S))
    smoothed = np.convolve(np.pad(load, (width // 2, width - 1 - width // 2), "edge"), np.ones(width) / width, "valid")
    need = np.maximum(1, np.ceil(smoothed / fill - 1e-9)).astype(int)
    ahead = math.ceil(case.setup.cold_start_s / _BIN_S)
    counts = np.zeros(len(need), dtype=int)
    for level in range(1, int(need.max()) + 1):
        busy = need >= level
        counts += _kept(busy, ahead, foresight=foresight)
    for death in case.setup.deaths if foresight else ():
        # From the bin of the death on, the replacements count as the needed replicas.
        there = int(death.at_s // _BIN_S)
        counts[max(0, there - ahead) : there] += death.replicas
    return ReplicaSchedule(tuple(int(each) for each in counts))


def _kept(
    busy: np.ndarray[tuple[int], np.dtype[np.bool_]], ahead: int, *, foresight: bool
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the times in which the replica of one level is up or starts."""
    there = busy.copy()
    last = -1
    for place in np.flatnonzero(busy):
        # Gaps that are no longer than a cold start, and with foresight that start itself.
        if foresight or (last >= 0 and place - last - 1 <= ahead):
            there[max(last + 1, place - ahead) : place] = True
        last = int(place)
    return there


def _load(case: Case, prompts_first: bool) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    engine = case.setup.engine
    model = true_model(engine)
    bins = np.zeros(int(case.trace[-1].arrival_s // _BIN_S) + 2)
    for each in case.trace:
        work = work_of(each, engine)
        # Its running time in a full batch.
        mix = Shape(each.prompt_tokens, each.output_tokens).mix
        batch = min(float(engine.max_num_seqs), engine.max_num_batched_tokens / mix.tokens)
        runs_s = min(engine.max_num_seqs * work, each.output_tokens * model.itl(batch, mix))
        prompt_s = min(work, model.b * each.prompt_tokens) if prompts_first else 0.0
        begun = each.arrival_s + (max(_BIN_S, prompt_s) if prompts_first else 0.0)
        _spread(bins, each.arrival_s, begun, prompt_s)
        _spread(bins, begun, begun + max(_BIN_S, runs_s), work - prompt_s)
    return bins


def _spread(bins: np.ndarray[tuple[int], np.dtype[np.float64]], since: float, until: float, work: float) -> None:
    """Add work to the bins between two times, per second."""
    first, end = since / _BIN_S, until / _BIN_S
    if end <= first:
        return
    for place in range(int(first), min(len(bins), int(end) + 1)):
        part = min(end, place + 1) - max(first, place)
        bins[place] += work * part / (end - first) / _BIN_S
