"""`penstock simulate`: flags, the simulation of a trace, and its report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cluster.errors import SettingsError
from cluster.plural import counted
from cluster.settings import SimSettings
from cluster.standby.rule import StandbyLimits
from cluster.terminal.console import messages, screen
from cluster.terminal.lines import ProgressLines
from loadtest.report.compare import read_report
from loadtest.report.json_text import json_text
from loadtest.report.origin import origin
from loadtest.simulate.autoscalers.tuning import Dial, Try, Tuned, tune, verdict
from loadtest.simulate.chosen import (
    FILLED,
    STATIC,
    counted_at,
    dial_of,
    most_replicas,
    simulation_of,
    with_floor,
)
from loadtest.simulate.given_flags import given
from loadtest.simulate.parts.chosen import check_alike, parts_of, with_parts
from loadtest.simulate.parts.words import lines
from loadtest.simulate.parts.words import notes as parts_notes
from loadtest.simulate.pool.fleet import Fleet
from loadtest.simulate.pool.outcome import SimulatedRun
from loadtest.simulate.results.figures import figures_of
from loadtest.simulate.results.report import table_of
from loadtest.simulate.results.simulated import Simulated
from loadtest.simulate.setup import Death, Setup, Slo, SlowNodes
from loadtest.traces import TraceRequest, read_trace, scale_rate, trace_file
from penstock.models import RequestClass

_COMPARED = ("requests", "attainment", "worst_5min_attainment", "ttft_s", "itl_s", "e2e_s", "replica_hours")
MISSED = 3
"""Exit status where a search finds nothing that holds."""


def run_simulate(options: argparse.Namespace) -> int:
    """Simulate a trace and report.

    Raises:
        TraceError: the trace cannot be read.
        SettingsError: a flag is out of range.
    """
    if not options.trace:
        raise SettingsError("give --trace, --models or --validate")
    for name in ("html", "png"):
        check_folder(name, getattr(options, name))
    if options.compare and not options.html:
        raise SettingsError(f"compare is a part of the page, so html must be given with it, got {options.compare}")
    others = {options.compare: read_report(options.compare, _COMPARED, "a simulation")} if options.compare else {}
    setup = setup_of(options)
    trace = load_for(options, setup)
    tuned: Tuning | None = None
    if options.tune is not None:
        tuned = _tune(trace, options, setup)
        setup, target = tuned.setup, tuned.target
    else:
        target = options.target
    run = _simulated(trace, options, setup, target, "simulating")
    slo = dict.fromkeys(RequestClass, setup.slo)
    figures = figures_of(run, slo)
    title, made_by, notes = _title(trace, options), origin(), notes_of(setup, run.fleet)
    if options.json:
        more = {**({} if tuned is None else tuned.as_json()), **({"parts": run.parts} if run.parts else {})}
        sys.stdout.write(json_text({**figures.as_json(), **more, "notes": notes, "origin": made_by}))
    else:
        screen().print(table_of(figures, title, slo_of(setup)))
        if tuned is not None:
            screen().print(escape(tuned.words), highlight=False, soft_wrap=True)
        for note in [*lines(run.parts), *notes]:
            screen().print(f"[dim]{escape(note)}[/]", highlight=False, soft_wrap=True)
    # The pictures come last, so that one that can't be drawn or written costs no figures.
    load = [
        *load_of(options, setup),
        *lines(run.parts),
        *notes,
        *([] if tuned is None else [tuned.words]),
    ]
    _draw(options, Simulated(title, load, run, figures, setup, made_by, others))
    return MISSED if tuned is not None and not tuned.holds else 0


def load_for(options: argparse.Namespace, setup: Setup) -> Sequence[TraceRequest]:
    """Read the trace that the flags name, with what the parts of the cluster need of it.

    Raises:
        TraceError: it cannot be read.
        SettingsError: a flag has no effect on it.
    """
    console = messages()
    recorded = read_trace(
        Path(trace_file(options.trace)),
        options.limit,
        tell=lambda text: console.print(f"[dim]{escape(text)}[/]", highlight=False, soft_wrap=True),
    )
    trace = with_parts(scale_rate(recorded, options.scale_rate), setup.parts, setup.engine.block_size, setup.seed)
    check_alike(options, trace)
    return trace


def _simulated(
    trace: Sequence[TraceRequest], options: argparse.Namespace, setup: Setup, target: float | None, what: str
) -> SimulatedRun:
    """Simulate a trace with a value of the policy's dial, and tell how far it is."""
    console = messages()
    with progress_bar(console, quiet=not console.is_terminal) as progress:
        task, lines = progress.add_task(what, total=len(trace)), ProgressLines(console)

        def tell(ended: int) -> None:
            progress.update(task, completed=ended)
            lines(f"{what}: {ended:,} of {len(trace):,} requests")

        return simulation_of(trace, options, setup, target, tell).run()


@dataclass(frozen=True, slots=True)
class Tuning:
    """A search, and the cluster that it chose."""

    found: Tuned
    floor: Tuned | None
    setup: Setup
    target: float | None
    words: str

    @property
    def holds(self) -> bool:
        """Whether a value of the dial holds, or a floor with its usual value."""
        return self.found.best is not None or (self.floor is not None and self.floor.best is not None)

    def as_json(self) -> dict[str, Any]:
        """Return the data of `--json`."""
        floor = None if self.floor is None else asdict(self.floor)
        return {"tuned": asdict(self.found), "floor": floor, "verdict": self.words}


def _tune(trace: Sequence[TraceRequest], options: argparse.Namespace, setup: Setup) -> Tuning:
    """Find the policy's dial that holds the attainment at the least cost, and whether a floor is cheaper."""
    slo, aim = dict.fromkeys(RequestClass, setup.slo), options.tune

    def tried(value: float, setup: Setup, target: float | None, what: str) -> Try:
        run = _simulated(trace, options, setup, target, f"{what} {value:g}")
        figures = figures_of(run, slo)
        return Try(value, figures.attainment, figures.replica_hours)

    dial = dial_of(options)
    if options.policy in STATIC:
        found = tune(dial, lambda value: tried(value, counted_at(setup, int(value)), None, "replicas"), aim)
        chosen = int(_chosen(found).value)
        return Tuning(found, None, counted_at(setup, chosen), None, verdict(options.policy, found, None))
    found = tune(dial, lambda value: tried(value, setup, value, "target"), aim)
    floors = Dial.counts("min-replicas", setup.min_replicas + 1, setup.max_replicas)
    floor = None
    if floors.values:
        floor = tune(floors, lambda value: tried(value, with_floor(setup, int(value)), None, "min-replicas"), aim)
    words = verdict(options.policy, found, floor)
    if found.best is None and floor is not None and floor.best is not None:
        # Only a floor holds, so that is the run to show.
        return Tuning(found, floor, with_floor(setup, int(floor.best.value)), None, words)
    return Tuning(found, floor, setup, _chosen(found).value, words)


def _chosen(found: Tuned) -> Try:
    """Return the run to show: the best one, or where none holds, the one that comes closest."""
    return found.best or max(found.tried, key=lambda each: each.attainment)


def load_of(options: argparse.Namespace, setup: Setup) -> list[str]:
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
        f"SLO of a request: {slo_of(setup)}.",
    ]


def notes_of(setup: Setup, fleet: Fleet) -> list[str]:
    """Say what parts of a run are not held to measurements, and how much of them came about."""
    notes = []
    if setup.deaths:
        asked, died = sum(death.replicas for death in setup.deaths), counted(fleet.died, "replica dies", "replicas die")
        # Others are not ready at the time, or the run is over by then.
        all_of = "" if fleet.died == asked else f", not all {asked} that were asked for"
        notes.append(f"{died}{all_of}; what a death costs besides the lost work and a cold start is not measured.")
    if setup.slow.replicas:
        slow = counted(min(setup.slow.replicas, fleet.started), "replica")
        how = f"{slow} at first with steps {setup.slow.factor:g} times as long"
        notes.append(f"{how}; that all parts of a step are slower alike is not measured.")
    return [*notes, *parts_notes(setup.parts)]


def slo_of(setup: Setup) -> str:
    return f"TTFT within {setup.slo.ttft_s:g} s, own ITL p95 within {setup.slo.itl_s:g} s"


def check_folder(name: str, path: str | None) -> None:
    """Refuse a missing folder before the long run, not after it."""
    if path and not Path(path).absolute().parent.is_dir():
        raise SettingsError(f"{name} must name a file in a folder that exists, got {path}")


def _draw(options: argparse.Namespace, what: Simulated) -> None:
    if options.html:
        from loadtest.simulate.results.page import write_html

        write_file("html", options.html, lambda path: write_html(path, what))
    if options.png:
        from loadtest.report.draw import write_png
        from loadtest.simulate.results.timeline import timeline_of

        charts = timeline_of(what.run, what.setup)
        if not charts:
            raise SettingsError(f"png must be of a run that lasts longer than 0 s, got {what.run.seconds:g} s")
        write_file("png", options.png, lambda path: write_png(path, charts, what.title))


def write_file(name: str, path: str, write: Callable[[Path], None]) -> None:
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
    static, replicas = options.policy in STATIC, options.replicas
    if options.tune is not None and static:
        # The number that the search finds takes the place of this one.
        replicas = max(1, options.min_replicas)
    elif static and not replicas:
        raise SettingsError(f"replicas must be at least 1 with policy {options.policy}, which adds none, got 0")
    elif static:
        _check_static(options)
    _check_start(options)
    largest = options.max_replicas or most_replicas(options)
    parts = parts_of(options, engine, STATIC)
    if parts.split is not None:
        replicas = parts.split.decode_replicas
    return Setup(
        engine=engine,
        replicas=replicas,
        min_replicas=replicas if static else options.min_replicas,
        max_replicas=replicas if static else largest,
        routers=options.routers,
        queue_timeout_s=options.queue_timeout,
        default_class=RequestClass[options.request_class.upper()],
        cold_start_s=options.cold_start,
        standby=_standby(options),
        deaths=tuple(Death(at_s, count) for at_s, count in options.die),
        slow=SlowNodes(*options.slow) if options.slow else SlowNodes(),
        prefix_cache=not options.no_prefix_cache,
        parts=parts,
        scripts=options.scripts,
        overhead_s=options.overhead_ms / 1e3,
        overhead_steps=options.overhead_steps,
        slo=Slo(options.slo_ttft, options.slo_itl),
        seed=options.seed,
    )


def _standby(options: argparse.Namespace) -> StandbyLimits:
    if (found := given(options) & {"standby", "standby_price", "wake"}) and options.policy not in FILLED:
        flag = min(found).replace("_", "-")
        raise SettingsError(f"{flag} is for the policies {' and '.join(FILLED)}, not for {options.policy}")
    for name in sorted(found - {"standby"} if not options.standby else ()):
        raise SettingsError(
            f"{name.replace('_', '-')} is for standby: nobody stands by, got {getattr(options, name):g}"
        )
    return StandbyLimits(0, options.standby, options.standby_price, options.wake)


def progress_bar(console: Console, *, quiet: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=quiet)


def _title(trace: Sequence[TraceRequest], options: argparse.Namespace) -> str:
    lasts_s = trace[-1].arrival_s
    rate = len(trace) / lasts_s if lasts_s else 0.0
    # One request in an hour must not look like none.
    shown = f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"
    load = f"{lasts_s / 3600:.2f} h at {shown} requests/s" if lasts_s else f"{len(trace)} at once"
    return f"{Path(options.trace).name}: {load}, policy {options.policy}"
