"""`penstock loadtest`: from flags to a run, its report and its verdict."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape as as_it_is
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from cluster.errors import PenstockError, SettingsError
from cluster.plural import counted
from cluster.terminal.command import KEY_VARIABLE
from cluster.terminal.console import messages, print_problem, screen
from cluster.terminal.lines import ProgressLines
from cluster.terminal.tables import add_columns, print_table
from loadtest.load.driver.target import Target, split_routers
from loadtest.load.locust.options import scenario_of
from loadtest.load.results.asserts import Bound, check_kinds, failures, parse_bounds
from loadtest.load.results.attainment import attainment, course_of
from loadtest.load.results.comparison import compared, read_run
from loadtest.load.results.page import run_page
from loadtest.load.results.sweep import Knee, Search, SearchPlan, Trial
from loadtest.load.results.sweep_page import sweep_page
from loadtest.load.results.words import cached_words
from loadtest.load.runner import RunOptions, run_scenario
from loadtest.load.schedule.pipes import without_pipes
from loadtest.load.schedule.plan import plan, until_last
from loadtest.load.schedule.scenario import SCENARIOS, Scenario, scenario_fields
from loadtest.report.json_text import json_text
from loadtest.report.origin import origin

_SWEEP_BOUND = "goodput>=0.99"
_SWEEP_DOWN = 64
_LEAST_REQUESTS = 20
_TWO = 2
"""Files of `--compare` with which nothing runs."""
INTERRUPTED = 130
"""Status that shells return for Ctrl-C."""
_TIMES = (("ttft_s", "TTFT"), ("itl_s", "ITL"), ("tpot_s", "time/token"), ("e2e_s", "E2E"), ("queue_s", "queue"))


def run_loadtest(options: argparse.Namespace) -> int:
    """Run a load test or a sweep.

    Returns:
        0, 1 where a bound was broken or no rate held, or 130 after Ctrl-C, with a report of what ran.

    Raises:
        SettingsError: a flag is wrong.
        TraceError: a trace can't be read.
        GeneratorError: Locust failed.
    """
    console = messages()
    if options.list:
        _list(screen())
        return 0
    bounds = parse_bounds(options.bounds) if options.bounds else []
    _check_compare(options)
    if len(options.compare) == _TWO:
        return _compare_files(options, console)
    if not options.sweep and (stray := _sweep_flags(options)):
        raise SettingsError(f"--sweep-{next(iter(stray))} says how to search, which only --sweep does")
    with without_pipes(scenario_of(options, _seconds(options.duration))) as scenario:
        return _run(options, scenario, bounds, console)


def _run(options: argparse.Namespace, scenario: Scenario, bounds: Sequence[Bound], console: Console) -> int:
    check_kinds(bounds, ["trace"] if scenario.trace else list(scenario.mix))
    # This also reads a trace, so an error in it shows before any request is sent.
    tell = partial(console.print, style="dim", markup=False, highlight=False, soft_wrap=True)
    if next(plan(scenario, tell=tell), None) is None:
        raise SettingsError(f"no request is due in {scenario.duration_s:g} s at {scenario.rate:g} requests/s")
    asked_s, scenario = scenario.duration_s, until_last(scenario)
    if scenario.duration_s < asked_s:
        tell(f"the last request of the trace is due before second {scenario.duration_s:g}, so the load ends then")
    run = RunOptions(target_from(options), options.processes, options.drain)
    others = {name: read_run(name) for name in options.compare}
    prefix = options.report or f"loadtest-{scenario.name}"
    if options.sweep:
        return _sweep(options, scenario, run, bounds or parse_bounds(_SWEEP_BOUND), prefix, console)
    said = f"[yellow]interrupted:[/] open requests have {run.drain_s:g} s to end; once more ends them now"
    with _shown(console, scenario, "") as progress:
        figures = run_scenario(scenario, run, progress, lambda: console.print(said, highlight=False))
    found = attainment([course_of(figures)])
    figures["attainment"] = None if found is None else asdict(found)
    broken = failures(bounds, figures)
    held = [bound.text for bound in bounds if bound.failure(figures) is None]
    figures["assert"] = {"bounds": [bound.text for bound in bounds], "broken": broken, "held": held}
    figures["origin"] = origin()
    parts = [compared(figures, other, name) for name, other in others.items()]
    _write(prefix, run_page(figures, _verdicts(figures), parts), figures, console)
    if options.json:
        sys.stdout.write(json_text(figures))
    else:
        _print(figures, scenario, screen())
    for sentence in broken:
        print_problem(f"assertion failed: {sentence}")
    if not figures["requests"]:
        print_problem("no request ended; is the run too short for its rate?")
        return 1
    if figures["interrupted"]:
        console.print("[yellow]penstock:[/] interrupted; the figures are of what was sent until then", highlight=False)
        return INTERRUPTED
    return int(bool(broken))


def _verdicts(figures: Mapping[str, Any]) -> list[tuple[str, bool]]:
    found = figures.get("assert", {})
    return [*((text, False) for text in found.get("broken", ())), *((text, True) for text in found.get("held", ()))]


def _check_compare(options: argparse.Namespace) -> None:
    if len(options.compare) > _TWO:
        raise SettingsError(f"compare takes one file, or two, got {len(options.compare)}")
    if options.compare and options.sweep:
        raise SettingsError("compare is for single runs, not for --sweep")


def _compare_files(options: argparse.Namespace, console: Console) -> int:
    """Compare two earlier runs. Nothing is sent."""
    before, after = options.compare
    other, figures = read_run(before), read_run(after)
    prefix = options.report or f"loadtest-{Path(after).stem}-and-{Path(before).stem}"
    html = run_page(figures, _verdicts(figures), [compared(figures, other, before)], Path(after).stem)
    _write_files({f"{prefix}.html": html}, console)
    return 0


def _sweep_flags(options: argparse.Namespace) -> dict[str, Any]:
    given = {each.name: getattr(options, f"sweep_{each.name}", None) for each in fields(SearchPlan)}
    return {name: value for name, value in given.items() if value is not None}


def target_from(options: argparse.Namespace) -> Target:
    """Build the target that the flags of `penstock` describe.

    Raises:
        SettingsError: the flags don't fit together, or a file can't be read.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    if options.api_key_file:
        try:
            key = Path(options.api_key_file).expanduser().read_bytes().decode(errors="replace").strip()
        except OSError as error:
            raise SettingsError(f"--api-key-file: {options.api_key_file} cannot be read: {error.strerror}") from error
    target = Target(
        routers=split_routers(options.target),
        model=options.model or "",
        api_key=key,
        allow_plaintext_key=options.allow_plaintext_key,
        tls=options.tls,
        ca=options.tls_ca or "",
        cert=options.tls_cert or "",
        key=options.tls_key or "",
        server_name=options.tls_server_name or "",
        timeout_s=options.request_timeout,
        flush_s=options.flush_interval,
    )
    target.check()
    return target


def _sweep(
    options: argparse.Namespace,
    scenario: Scenario,
    run: RunOptions,
    bounds: Sequence[Bound],
    prefix: str,
    console: Console,
) -> int:
    if scenario.trace:
        raise SettingsError("sweep: a trace has its own rate; give a scenario without one")
    # Below this, a trial has too few requests for a verdict.
    asked = SearchPlan(**_sweep_flags(options))
    floor = max(asked.low / _SWEEP_DOWN, _LEAST_REQUESTS / scenario.duration_s)
    searched = replace(asked, floor=min(floor, asked.low))

    def trial(rate: float, repeat: int) -> Trial:
        each = replace(scenario, rate=rate, seed=scenario.seed + 1000 * repeat)
        with _shown(console, each, f"{rate:.3g}/s trial {repeat + 1}: ") as progress:
            figures = run_scenario(each, run, progress)
        broken = failures(bounds, figures)
        verdict = f"[red]broken[/] ({as_it_is('; '.join(broken))})" if broken else "[green]held[/]"
        console.print(f"{rate:.4g} requests/s, trial {repeat + 1}: {verdict}", highlight=False)
        trusted = not figures["generator"]["bottleneck"]
        if broken and not trusted:
            console.print("the generator itself was late in it", highlight=False)
        good, ended = figures["good"], figures["requests"]
        return Trial(rate, repeat, not broken, trusted, good, ended, _brief(figures), course_of(figures))

    hunt = Search(searched, trial)
    cut: BaseException | None = None
    try:
        knee = hunt.run()
    except (KeyboardInterrupt, PenstockError) as error:
        # Hours of trials may be behind it.
        knee, cut = hunt.so_far(), error
        if not knee.trials:
            console.print("no trial ended, so there is no report", highlight=False)
            raise
    texts = [bound.text for bound in bounds]
    figures = {"scenario": scenario.name, "bounds": texts, "origin": origin(), **knee.as_json()}
    _write(prefix, sweep_page(scenario_fields(scenario), knee, texts, figures["origin"]), figures, console)
    if options.json:
        sys.stdout.write(json_text(figures))
    else:
        print_table(_sweep_table(knee), screen())
        screen().print(as_it_is(knee.sentence()), highlight=False)
    if not knee.trusted:
        console.print(
            "[red]penstock:[/] a generator was the bottleneck; give it more --processes or cores", highlight=False
        )
    if isinstance(cut, PenstockError):
        raise cut
    if cut is not None:
        console.print("[yellow]penstock:[/] interrupted; the report is of the trials that ended", highlight=False)
        return INTERRUPTED
    return int(knee.holds is None)


def _brief(figures: Mapping[str, Any]) -> dict[str, Any]:
    names = ("goodput", "error_rate", "errors", "rps", "tokens_per_s", "ttft_s", "itl_s", "e2e_s", "queue_s")
    lag = figures["generator"]["lag_s"]["p99"]
    return {**{name: figures[name] for name in names}, "generator_lag_p99_s": lag}


def _sweep_table(knee: Knee) -> Table:
    table = Table()
    names = ("requests/s", "trial", "SLO", "goodput", "tokens/s", "TTFT p99 ms", "ITL p99 ms", "lag p99 ms")
    add_columns(table, *names, left=("SLO",))
    for each in sorted(knee.trials, key=lambda trial: (trial.rate, trial.repeat)):
        figures = each.figures
        times = (figures["ttft_s"]["p99"], figures["itl_s"]["p99"], figures["generator_lag_p99_s"])
        goodput = "-" if figures["goodput"] is None else f"{figures['goodput']:.2%}"
        words = [f"{each.rate:.4g}", str(each.repeat + 1), "[green]held[/]" if each.held else "[red]broken[/]", goodput]
        table.add_row(*words, f"{figures['tokens_per_s']:,.0f}", *map(_ms, times))
    return table


@contextmanager
def _shown(console: Console, scenario: Scenario, prefix: str) -> Any:
    told_of, figures_of = (TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[said]"))
    columns = (told_of, BarColumn(), TimeRemainingColumn(), figures_of)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{prefix}{scenario.name}", total=scenario.duration_s, said="starting")
        lines = ProgressLines(console)

        def tell(line: Mapping[str, Any]) -> None:
            last = line["last"] or {"running": 0, "output_tokens": 0}
            goodput = "-" if line["goodput"] is None else f"{line['goodput']:.1%}"
            said = (
                f"{line['requests']:,} done, {last['running']} open, {line['errors']} failed, goodput {goodput}, "
                f"TTFT p99 {_ms(line['ttft_p99_s'])} ms, ITL p99 {_ms(line['itl_p99_s'])} ms, "
                f"{last['output_tokens']:,} tokens/s"
            )
            done = min(line["elapsed_s"], scenario.duration_s)
            progress.update(task, completed=done, said=said)
            lines(f"{prefix}{scenario.name}, {done:.0f} of {scenario.duration_s:g} s: {said}")

        told: Callable[[Mapping[str, Any]], None] = tell
        yield told


def _print(figures: Mapping[str, Any], scenario: Scenario, console: Console) -> None:
    title = f"{as_it_is(scenario.name)}: {counted(figures['requests'], 'request')}, ms"
    table = Table(title=title, title_justify="left")
    names = ("kind", "requests", "goodput", *(f"{title} p50 / p99" for _, title in _TIMES))
    add_columns(table, *names, words=("kind",))
    kinds = figures["by_kind"]
    for kind, each in {**kinds, **({"all": figures} if len(kinds) != 1 else {})}.items():
        goodput = "-" if each["goodput"] is None else f"{each['goodput']:.2%}"
        times = [f"{_ms(each[key]['p50'])} / {_ms(each[key]['p99'])}" for key, _ in _TIMES]
        table.add_row(Text(kind), f"{each['requests']:,}", goodput, *times)
    print_table(table, console)
    failed = ", ".join(f"{count:,} {reason}" for reason, count in figures["errors"].items()) or "none"
    generator = figures["generator"]
    console.print(
        f"{figures['rps']:.2f} requests/s, {figures['tokens_per_s']:,.0f} tokens/s; failed: {failed}; "
        f"generator lag p99 {_ms(generator['lag_s']['p99'])} ms",
        markup=False,
        highlight=False,
    )
    if (sure := figures["attainment"]) is not None:
        console.print(
            f"goodput {sure['part']:.2%}, with 95 % confidence {sure['low']:.1%} to {sure['high']:.1%}: "
            f"{counted(sure['requests'], 'request is', 'requests are')} worth "
            f"{sure['requests'] / sure['design_effect']:,.0f} independent ones",
            highlight=False,
        )
    if cached := cached_words(figures):
        console.print(as_it_is(cached), highlight=False)
    for why in generator["why"]:
        console.print(f"[red]the generator was the bottleneck:[/] {as_it_is(why)}", highlight=False)
    if figures["clipped"]:
        console.print(
            f"[yellow]{counted(figures['clipped'], 'request was', 'requests were')} cut to the model's context[/]",
            highlight=False,
        )


def _list(console: Console) -> None:
    table = Table()
    # Arrivals are copied, so they must be complete.
    names = ("scenario", "what", "arrivals", "requests/s", "seconds", "mix")
    add_columns(table, *names, words=("what", "mix"), left=("scenario", "arrivals"))
    for each in SCENARIOS.values():
        mix = ", ".join(f"{name} {weight:g}" for name, weight in each.mix.items())
        table.add_row(each.name, each.text, str(each.arrivals), f"{each.rate:g}", f"{each.duration_s:g}", mix)
    print_table(table, console)


def _write(prefix: str, html: str, figures: Mapping[str, Any], console: Console) -> None:
    _write_files({f"{prefix}.html": html, f"{prefix}.json": json_text(figures)}, console)


def _write_files(texts: Mapping[str, str], console: Console) -> None:
    for name, text in texts.items():
        try:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"report: {name} cannot be written: {error.strerror}") from error
    console.print(as_it_is(f"wrote {' and '.join(texts)}"), highlight=False, soft_wrap=True)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise SettingsError(f"duration must be a number of seconds, got {text!r}") from None


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{1e3 * value:,.1f}"
