"""The policies that flags ask for, with their dials."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

from cluster.control.replica_rules import SlowRules
from cluster.errors import SettingsError
from cluster.settings import AffinitySettings
from loadtest.simulate.autoscalers.baselines import Hpa, HpaMetric, RayServe
from loadtest.simulate.autoscalers.contract import FastFactory, SlowPolicy
from loadtest.simulate.autoscalers.imitations import Dynamo, Wva
from loadtest.simulate.autoscalers.penstock import PenstockFast, model_of, penstock_slow, point_of
from loadtest.simulate.autoscalers.tuning import Dial
from loadtest.simulate.given_flags import given
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.setup import Setup
from loadtest.traces import TraceRequest
from router.affinity import Affinity

STATIC = ("static", "penstock-fast")
"""Policies that keep the number of replicas, which is their dial."""
FILLED = ("penstock", "penstock-slow")
"""Policies with a planned part of a replica's time, which also keep standbys."""
_HPA = {HpaMetric.QUEUE: (4.0, 64.0, 0.1), HpaMetric.SLOTS: (0.7, 2.0, 0.05), HpaMetric.KV: (0.7, 1.0, 0.05)}
"""Usual target, and the ends of a search."""
_ENDS = {"ray": (128.0, 0.5), "dynamo": (1.5, 0.1), "wva": (0.95, 0.05), **dict.fromkeys(FILLED, (0.95, 0.1))}


def simulation_of(
    trace: Sequence[TraceRequest],
    options: argparse.Namespace,
    setup: Setup,
    target: float | None = None,
    tell: Callable[[int], None] | None = None,
) -> Simulation:
    """Return the simulation that the flags ask for.

    Args:
        trace: the load.
        options: the flags.
        setup: the cluster.
        target: the policy's dial; None for its usual one.
        tell: called now and then with the number of requests that have ended.

    Raises:
        SettingsError: a flag is not for this policy.
    """
    return Simulation(
        trace,
        setup,
        fast=fast_policy(options, setup),
        slow=slow_policy(options, setup, target),
        affinity=(lambda: Affinity(AffinitySettings())) if options.affinity else None,
        progress=tell,
    )


def fast_policy(options: argparse.Namespace, setup: Setup) -> FastFactory | None:
    """Return the maker of batch policies that the flags ask for; None keeps the batch limit."""
    if options.policy not in ("penstock", "penstock-fast"):
        return None
    point = point_of({setup.default_class: setup.slo})
    model = model_of(setup)
    return lambda: PenstockFast(point, model)


def slow_policy(options: argparse.Namespace, setup: Setup, target: float | None = None) -> SlowPolicy | None:
    """Return the replica policy that the flags ask for; None keeps the replica count. `target` is its dial, None for
    its usual one.

    Raises:
        SettingsError: a flag is not for this policy.
    """
    policy = options.policy
    if policy != "hpa" and "metric" in given(options):
        raise SettingsError(f"metric is for the policy hpa, not for {policy}")
    if policy == "hpa":
        metric = HpaMetric(options.metric)
        return Hpa(metric, _HPA[metric][0] if target is None else target)
    if policy == "ray":
        return RayServe() if target is None else RayServe(target)
    if policy == "dynamo":
        return Dynamo(
            model_of(setup),
            float(setup.engine.max_num_seqs),
            1.0 if target is None else target,
            setup.engine.max_num_batched_tokens,
        )
    if policy == "wva":
        return Wva() if target is None else Wva(target)
    if policy in FILLED:
        if target is not None and target > 1:
            raise SettingsError(f"target must be at most 1 for {policy}: the part of a replica's time that is planned "
                                f"for, got {target:g}")  # fmt: skip
        point = point_of({setup.default_class: setup.slo})
        return penstock_slow(setup, point, rules=None if target is None else SlowRules(fill=target))
    if target is not None:
        raise SettingsError(f"target is for policies that add replicas, not for {policy}")
    return None


def dial_of(options: argparse.Namespace) -> Dial:
    """Return what a search turns for the policy that the flags ask for.

    Raises:
        SettingsError: a flag says what the search looks for.
    """
    name = "replicas" if options.policy in STATIC else "target"
    if name in given(options):
        raise SettingsError(f"{name} is what tune looks for with policy {options.policy}, got {getattr(options, name)}")
    if options.policy in STATIC:
        least, most = options.min_replicas, options.max_replicas or most_replicas(options)
        if least > most:
            raise SettingsError(f"min-replicas must be at most max-replicas = {most}, got {least}")
        return Dial.counts(name, least, most)
    loose, tight = _HPA[HpaMetric(options.metric)][1:] if options.policy == "hpa" else _ENDS[options.policy]
    return Dial.between(name, loose, tight)


def most_replicas(options: argparse.Namespace) -> int:
    """Return the usual bound on the replicas, where a policy may add some."""
    return max(_MAX_REPLICAS, int(options.replicas))


_MAX_REPLICAS = 64


def counted_at(setup: Setup, replicas: int) -> Setup:
    """Return the setup of a pool that keeps a number of replicas."""
    return replace(setup, replicas=replicas, min_replicas=replicas, max_replicas=replicas)


def with_floor(setup: Setup, replicas: int) -> Setup:
    """Return the setup with a least number of replicas, which are there from the beginning."""
    return replace(
        setup,
        replicas=max(setup.replicas, replicas),
        min_replicas=replicas,
        max_replicas=max(setup.max_replicas, replicas),
    )
