"""The plan that knows the future: whole replicas, each ordered one cold start before it is needed.

The need follows from the arrivals with their true lengths, each request's work spread over the time it runs, or its
prompt's over the moments after it comes: which is nearer the truth depends on the load. A replica between two needs
stays if starting anew would cost as much, and who takes the place of one that is going to die is ordered in time. What
remains is how full replicas may be, and of all those plans the cheapest that reaches the attainment in the same
simulator is the oracle. It is the cheapest of a family of plans, not of all.

The nowcast is the same without foresight: it knows what is needed at every moment, and orders it then. What a policy
that scales with the load takes beyond the nowcast is for finding out; what the nowcast takes beyond the oracle is for
what can't be known.
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
class Plan:
    """Says how many replicas there are to be, those that start included, by the time; a slow policy."""

    counts: tuple[int, ...]
    """For each 15 s."""

    def decide(self, snapshot: PoolSnapshot) -> int:
        """See `SlowPolicy.decide`."""
        return self.counts[min(len(self.counts) - 1, int(snapshot.now_s // _BIN_S))]


def plan(
    case: Case, fill: float, smooth_s: float = 60.0, *, prompts_first: bool = False, foresight: bool = True
) -> Plan:
    """Plan for replicas that are at most so full, of class-less or interactive work and batch work alike.

    Args:
        case: the load.
        fill: part of a replica's time; more than 1 relies on what the SLO lets wait.
        smooth_s: the need is averaged over so long.
        prompts_first: whether a prompt's work is needed as it comes.
        foresight: whether replicas are ordered a cold start before they are needed; else at that moment, and those who
            die are replaced when they have died.
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
        # From the bin in which it happens on, those who were ordered for it are the ones that are needed.
        there = int(death.at_s // _BIN_S)
        counts[max(0, there - ahead) : there] += death.replicas
    return Plan(tuple(int(each) for each in counts))


def _kept(
    busy: np.ndarray[tuple[int], np.dtype[np.bool_]], ahead: int, *, foresight: bool
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return when the replica of one level is there or starts."""
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
        # As long as it runs in a batch that is full.
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
