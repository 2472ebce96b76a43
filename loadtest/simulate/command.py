"""`penstock simulate`: flags, the simulation of a trace, and its report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cluster.errors import SettingsError
from cluster.plural import counted
from cluster.settings import AffinitySettings, SimSettings
from cluster.standby.rule import StandbyLimits
from cluster.terminal.console import messages, screen
from cluster.terminal.lines import ProgressLines
from loadtest.report.compare import read_report
from loadtest.report.json_text import json_text
from loadtest.report.origin import origin
from loadtest.simulate.autoscalers.baselines import Hpa, HpaMetric, RayServe
from loadtest.simulate.autoscalers.contract import FastFactory, SlowPolicy
from loadtest.simulate.autoscalers.imitations import Dynamo, Wva
from loadtest.simulate.autoscalers.penstock import PenstockFast, model_of, penstock_slow, point_of
from loadtest.simulate.given_flags import given
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.results.figures import figures_of
from loadtest.simulate.results.report import table_of
from loadtest.simulate.results.simulated import Simulated
from loadtest.simulate.setup import Setup, Slo
from loadtest.traces import TraceRequest, read_trace, scale_rate, trace_file
from penstock.models import RequestClass
from router.affinity import Affinity

_STANDING = ("penstock", "penstock-slow")
"""Policies that keep standbys."""
_COMPARED = ("requests", "attainment", "worst_5min_attainment", "ttft_s", "itl_s", "e2e_s", "replica_hours")
_MAX_REPLICAS = 64
"""Default bound on the replicas, where a policy may add some."""


def run_simulate(options: argparse.Namespace) -> int:
    """Simulate a trace and report.

    Raises:
        TraceError: the trace cannot be read.
        SettingsError: a flag is out of range.
    """
    if not options.trace:
        raise SettingsError("one of trace and validate must be given")
    for name in ("html", "png"):
        _check_folder(name, getattr(options, name))
    if options.compare and not options.html:
        raise SettingsError(f"compare is a part of the page, so html must be given with it, got {options.compare}")
    others = {options.compare: read_report(options.compare, _COMPARED, "a simulation")} if options.compare else {}
    console = messages()
    trace = scale_rate(
        read_trace(
            Path(trace_file(options.trace)),
            options.limit,
            tell=lambda text: console.print(f"[dim]{escape(text)}[/]", highlight=False, soft_wrap=True),
        ),
        options.scale_rate,
    )
    setup = setup_of(options)
    slo = dict.fromkeys(RequestClass, setup.slo)
    with _bar(console, quiet=not console.is_terminal) as progress:
        task, lines = progress.add_task("simulating", total=len(trace)), ProgressLines(console)

        def tell(ended: int) -> None:
            progress.update(task, completed=ended)
            lines(f"{ended:,} of {len(trace):,} requests simulated")

        simulation = Simulation(
            trace,
            setup,
            fast=fast_policy(options, setup),
            slow=slow_policy(options, setup),
            affinity=(lambda: Affinity(AffinitySettings())) if options.affinity else None,
            progress=tell,
        )
        run = simulation.run()
    figures = figures_of(run, slo)
    title, made_by = _title(trace, options), origin()
    if options.json:
        sys.stdout.write(json_text({**figures.as_json(), "origin": made_by}))
    else:
        screen().print(table_of(figures, title, _slo(setup)))
    # The pictures come last, so that one that can't be drawn or written costs no figures.
    _draw(options, Simulated(title, _load(options, setup), run, figures, setup, made_by, others))
    return 0


def _load(options: argparse.Namespace, setup: Setup) -> list[str]:
    """Return the cluster and the SLO in sentences, for the page."""
    engine = setup.engine
    count = counted(setup.replicas, "replica")
    limit = (
        "" if setup.min_replicas == setup.max_replicas else f", {setup.min_replicas} to {setup.max_replicas} allowed"
    )
    return [
        f"{count} at first{limit}; a new one serves after {setup.cold_start_s:g} s. Policy {options.policy}, "
        f"{counted(setup.routers, 'router')}, seed {setup.seed}.",
        f"Engine: {engine.base_ms:g} ms per step, {engine.per_token_us:g} µs per token, "
        f"{engine.per_kv_token_us:g} µs per token of context; at most {engine.max_num_seqs} sequences and "
        f"{engine.kv_tokens:,} tokens of KV cache. A first token takes {1e3 * setup.overhead_s:g} ms and "
        f"{setup.overhead_steps:g} steps more.",
        f"SLO of a request: {_slo(setup)}.",
    ]


def _slo(setup: Setup) -> str:
    return f"TTFT within {setup.slo.ttft_s:g} s, own ITL p95 within {setup.slo.itl_s:g} s"


def _check_folder(name: str, path: str | None) -> None:
    """Refuse a missing folder before the long run, not after it."""
    if path and not Path(path).absolute().parent.is_dir():
        raise SettingsError(f"{name} must name a file in a folder that exists, got {path}")


def _draw(options: argparse.Namespace, what: Simulated) -> None:
    if options.html:
        from loadtest.simulate.results.page import write_html

        _written("html", options.html, lambda path: write_html(path, what))
    if options.png:
        from loadtest.report.draw import write_png
        from loadtest.simulate.results.timeline import timeline_of

        charts = timeline_of(what.run, what.setup)
        if not charts:
            raise SettingsError(f"png must be of a run that lasts longer than 0 s, got {what.run.seconds:g} s")
        _written("png", options.png, lambda path: write_png(path, charts, what.title))


def _written(name: str, path: str, write: Callable[[Path], None]) -> None:
    try:
        write(Path(path))
    except OSError as error:
        raise SettingsError(f"{name}: {path} cannot be written: {error.strerror}") from error


def _check_start(options: argparse.Namespace) -> None:
    """Refuse a cluster that can end up without replicas under a policy that never leaves 0."""
    stuck = f"must be at least 1 with policy {options.policy}, which starts nothing from 0 replicas, got 0"
    if options.policy == "hpa" and not options.min_replicas:
        # This policy can remove the last replica itself.
        raise SettingsError(f"min-replicas {stuck}")
    if options.policy in ("dynamo", "wva") and not (options.replicas or options.min_replicas):
        raise SettingsError(f"replicas or min-replicas {stuck}")


def _check_static(options: argparse.Namespace) -> None:
    """Refuse bounds that exclude the number of replicas: nothing would bring it there."""
    stays = f"replicas = {options.replicas} with policy {options.policy}, which keeps that number"
    if options.max_replicas is not None and options.max_replicas < options.replicas:
        raise SettingsError(f"max-replicas must be at least {stays}, got {options.max_replicas}")
    if options.min_replicas > options.replicas:
        raise SettingsError(f"min-replicas must be at most {stays}, got {options.min_replicas}")


def setup_of(options: argparse.Namespace) -> Setup:
    """Return the setup of the cluster that the flags ask for.

    Raises:
        SettingsError: a value is out of range.
    """
    engine = SimSettings(
        base_ms=options.base_ms,
        per_token_us=options.per_token_us,
        per_kv_token_us=options.per_kv_token_us,
        kv_tokens=options.kv_tokens,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=options.max_model_len,
    )
    static = options.policy in ("static", "penstock-fast")
    if static and not options.replicas:
        raise SettingsError(f"replicas must be at least 1 with policy {options.policy}, which adds none, got 0")
    if static:
        _check_static(options)
    _check_start(options)
    largest = options.max_replicas or max(_MAX_REPLICAS, options.replicas)
    return Setup(
        engine=engine,
        replicas=options.replicas,
        min_replicas=options.replicas if static else options.min_replicas,
        max_replicas=options.replicas if static else largest,
        routers=options.routers,
        queue_timeout_s=options.queue_timeout,
        default_class=RequestClass[options.request_class.upper()],
        cold_start_s=options.cold_start,
        standby=_standby(options),
        prefix_cache=not options.no_prefix_cache,
        scripts=options.scripts,
        overhead_s=options.overhead_ms / 1e3,
        overhead_steps=options.overhead_steps,
        slo=Slo(options.slo_ttft, options.slo_itl),
        seed=options.seed,
    )


def _standby(options: argparse.Namespace) -> StandbyLimits:
    if (found := given(options) & {"standby", "standby_price", "wake"}) and options.policy not in _STANDING:
        flag = min(found).replace("_", "-")
        raise SettingsError(f"{flag} is for the policies {' and '.join(_STANDING)}, not for {options.policy}")
    return StandbyLimits(0, options.standby, options.standby_price, options.wake)


def fast_policy(options: argparse.Namespace, setup: Setup) -> FastFactory | None:
    """Return the maker of batch policies that the flags ask for; None keeps the batch limit."""
    if options.policy not in ("penstock", "penstock-fast"):
        return None
    point = point_of({setup.default_class: setup.slo})
    model = model_of(setup)
    return lambda: PenstockFast(point, model)


def slow_policy(options: argparse.Namespace, setup: Setup) -> SlowPolicy | None:
    """Return the replica policy that the flags ask for; None keeps the replica count."""
    target = options.target
    if options.policy != "hpa" and "metric" in given(options):
        raise SettingsError(f"metric is for the policy hpa, not for {options.policy}")
    if options.policy == "hpa":
        metric = HpaMetric(options.metric)
        usual = 4.0 if metric is HpaMetric.QUEUE else 0.7
        return Hpa(metric, usual if target is None else target)
    if options.policy == "ray":
        return RayServe() if target is None else RayServe(target)
    if options.policy == "dynamo":
        return Dynamo(
            model_of(setup),
            float(setup.engine.max_num_seqs),
            1.0 if target is None else target,
            setup.engine.max_num_batched_tokens,
        )
    if options.policy == "wva":
        return Wva() if target is None else Wva(target)
    if target is not None:
        raise SettingsError(f"target is for the policies hpa, ray, dynamo and wva, not for {options.policy}")
    if options.policy in ("penstock", "penstock-slow"):
        return penstock_slow(setup, point_of({setup.default_class: setup.slo}))
    return None


def _bar(console: Console, *, quiet: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=quiet)


def _title(trace: Sequence[TraceRequest], options: argparse.Namespace) -> str:
    lasts_s = trace[-1].arrival_s
    rate = len(trace) / lasts_s if lasts_s else 0.0
    # One request in an hour must not look like none.
    shown = f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"
    load = f"{lasts_s / 3600:.2f} h at {shown} requests/s" if lasts_s else f"{len(trace)} at once"
    return f"{Path(options.trace).name}: {load}, policy {options.policy}"
