"""`penstock plan`: from flags to a plan, a score of measured points, or a review of earlier plans."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cluster.errors import SettingsError, plain_reason
from cluster.plural import counted
from cluster.terminal.console import messages, screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.engine.gpus import GPUS, Gpu, find_gpu, load_gpu
from loadtest.plan.engine.points import Scores, read_points, score
from loadtest.plan.engine.precision import canonical
from loadtest.plan.engine.prior import StepPrior
from loadtest.plan.option import Engine, Promise
from loadtest.plan.report import Plan, show, write_html
from loadtest.plan.review import Book, Kind
from loadtest.plan.search import FOREIGN_ERROR, PARALLEL, Planned, Rejected, engines, plan
from loadtest.plan.traffic import Load, load_of_lengths, recorded_load, steady_load
from loadtest.plan.what_if import WhatIf, autoscaled, ways_out, what_ifs
from loadtest.profile.stored import Profile, read_profile

LEAST_PROFILE_ERROR = 0.05
"""Engines vary more from day to day than a profile's own check shows."""
MOST_PROFILE_ERROR = 1.0
COMPARED = ("h100", "h200", "b200", "l40s")
"""What-ifs look at these accelerators too."""
INFEASIBLE = 3
"""Exit status."""


def run_plan(options: argparse.Namespace) -> int:
    """Do what the flags ask for.

    Raises:
        SettingsError: a flag is missing or out of range, or the model or accelerator is unknown.
        TraceError: a trace or a file of points cannot be read.
    """
    if options.check_points:
        return _check(Path(options.check_points), as_json=options.json)
    book = Book(Path(options.state_dir or "~/.penstock"))
    if options.observe:
        return _observe(book, *options.observe, as_json=options.json)
    if options.review:
        return _review(book, as_json=options.json)
    return _plan(options, book)


def _check_measured(options: argparse.Namespace) -> None:
    for flag in ("model", "precision", "tp"):
        if getattr(options, flag):
            raise SettingsError(f"--{flag} says what to look for, and --profile is of one engine that was measured")


def _plan(options: argparse.Namespace, book: Book) -> int:
    if options.html and not Path(options.html).absolute().parent.is_dir():
        raise SettingsError(f"html must name a file in a folder that exists, got {options.html}")
    load = _load(options)
    promise = Promise(options.slo_ttft, options.slo_itl, options.attainment)
    lost: list[Rejected] = []
    gpus: list[Gpu] = []
    precisions: list[str] = []
    if options.profile:
        _check_measured(options)
        measured = read_profile(Path(options.profile))
        prices = prices_of(options.price, measured.hardware)
        _check_prices(prices, [measured.hardware])
        options_found = [_within(engine_of(measured, prices), measured, load)]
    else:
        prices = prices_of(options.price)
        if not options.model:
            raise SettingsError("one of model, profile, check-points, observe and review must be given")
        shape = load_shape(options.model)
        gpus = [load_gpu(name) for name in options.gpu.split(",")]
        _check_prices(prices, [*(gpu.name for gpu in gpus), *COMPARED])
        precisions = [canonical(each) for each in (options.precision or shape.native).split(",")]
        parallel = tuple(options.tp) if options.tp else PARALLEL
        kv_bytes = 1.0 if options.kv_cache_dtype == "fp8" else 2.0
        listed = partial(engines, shape, prices=prices, parallel=parallel, kv_element_bytes=kv_bytes)
        options_found, lost = listed(gpus, precisions)
    options_found = [_with_history(each, book) for each in options_found]
    with messages().status("sizing") as status:
        best, rest, also_lost = plan(
            options_found,
            load,
            promise,
            simulated=options.simulate,
            draws=options.draws,
            seed=options.seed,
            tell=lambda text: status.update(escape(text)),
        )
    changes: list[WhatIf] = []
    if not options.profile:
        more = sorted({*precisions, "fp8", "int4"} if shape.native != "mxfp4" else {*precisions})
        others = gpus + [GPUS[name] for name in COMPARED if GPUS[name] not in gpus]
        if best:
            base = best[0].candidate
            changes = what_ifs(listed, base, load, promise, precisions=more, gpus=others)
        else:
            more = [each for each in more if each not in precisions]
            freer = partial(listed, parallel=PARALLEL) if options.tp else None
            changes = ways_out(listed, load, promise, gpus, precisions, (more, others[len(gpus) :]), freer)
    if best and load.trace:
        changes.append(autoscaled(best[0].candidate, load, promise, options.cold_start))
    name = options_found[0].model if options_found else str(options.model)
    found = Plan(name, load, promise, best, rest, [*lost, *also_lost], changes)
    ids = [_note(book, each, load) for each in best[:1]] if not options.no_store else []
    _print(found, ids, options)
    return 0 if found.feasible else INFEASIBLE


def _print(found: Plan, ids: Sequence[str], options: argparse.Namespace) -> None:
    if options.html:
        write_html(Path(options.html), found)
    if options.json:
        sys.stdout.write(json.dumps({**found.as_json(), "prediction_ids": list(ids)}, indent=2) + "\n")
        return
    console = screen()
    show(found, console)
    if ids:
        console.print(
            f"Kept as {ids[0]}: `penstock plan --observe {ids[0]} REPORT.json` notes what happened.", highlight=False
        )


def _load(options: argparse.Namespace) -> Load:
    _check_load(options)
    if options.trace:
        return recorded_load(Path(options.trace), options.limit, options.scale_rate, tell=_note_line)
    if not options.rate:
        raise SettingsError("one of rate and trace must be given")
    if options.lengths:
        return load_of_lengths(options.rate, Path(options.lengths))
    return steady_load(options.rate, options.prompt_tokens, options.output_tokens, options.spread)


def _check_load(options: argparse.Namespace) -> None:
    """Refuse flags that would do nothing: whoever gave one would take the plan for that of another load."""
    if options.trace:
        for name, value in (("rate", options.rate), ("lengths", options.lengths)):
            if value is not None:
                raise SettingsError(f"{name}: a trace has its own, got {value}; see scale-rate and limit")
        return
    for name, value, usual in (("limit", options.limit, None), ("scale-rate", options.scale_rate, 1.0)):
        if value != usual:
            raise SettingsError(f"{name} is for traces, got {value} without a trace; give a rate")


def _note_line(text: str) -> None:
    messages().print(f"[dim]{escape(text)}[/]", highlight=False, soft_wrap=True)


def prices_of(texts: Sequence[str], hardware: str | None = None) -> dict[str, float]:
    """Read prices such as h100=2.5, by the names that engines have.

    Args:
        texts: the flags.
        hardware: what a profile calls its own; it need not be an accelerator of the table.

    Raises:
        SettingsError: one is not like that, or of an unknown accelerator.
    """
    own = None if hardware is None else find_gpu(hardware)
    prices = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            price = float(value)
        except ValueError:
            price = -1.0
        if not equals or not 0 <= price < 1e6:
            raise SettingsError(f"price must be GPU=NUMBER with a number of at least 0, got {text!r}")
        gpu = find_gpu(name)
        if hardware is not None and (name.strip().lower() == hardware.lower() or (gpu is not None and gpu == own)):
            prices[hardware] = price
        elif gpu is not None:
            prices[gpu.name] = price
        else:
            known = sorted({*GPUS, *([] if hardware is None else [hardware])})
            raise SettingsError(f"price: {name.strip()!r} is no known accelerator; known: {', '.join(known)}")
    return prices


def _check_prices(prices: Iterable[str], looked_at: Sequence[str]) -> None:
    """Refuse a price of what is not looked at: whoever gave one would take the answer for the cheapest of them."""
    if stray := [name for name in prices if name not in looked_at]:
        known = ", ".join(dict.fromkeys(looked_at))
        raise SettingsError(f"price: {', '.join(stray)} is not looked at, only {known}")


def engine_of(profile: Profile, prices: dict[str, float]) -> Engine:
    """Return what a profile says of an engine.

    Raises:
        SettingsError: the profile misses its own held-out points by too much to plan with.
    """
    if profile.error > MOST_PROFILE_ERROR:
        raise SettingsError(
            f"profile: its held-out error of {profile.error:.0%} is more than {MOST_PROFILE_ERROR:.0%}: other work "
            "disturbed it; profile again on a quieter machine"
        )
    return Engine(
        model=profile.model,
        gpu=profile.hardware,
        tensor_parallel=profile.tensor_parallel,
        precision=profile.precision,
        steps=StepPrior(profile.model_of_steps, 0.0),
        error=max(LEAST_PROFILE_ERROR, profile.error),
        source="profile",
        kv_tokens=profile.kv_tokens,
        step_limits=(profile.step_tokens, min(profile.max_sequences, profile.batches[1])),
        context=profile.context,
        price=prices.get(profile.hardware),
        overhead_s=profile.overhead_s,
        overhead_steps=profile.overhead_steps,
    )


def _within(engine: Engine, profile: Profile, load: Load) -> Engine:
    """Claim less where requests are longer than what was measured."""
    mean = load.shape.prompt_tokens + load.shape.output_tokens
    if mean <= profile.lengths[1]:
        return engine
    return replace(engine, error=max(engine.error, FOREIGN_ERROR), source="profile, of shorter requests")


def _with_history(engine: Engine, book: Book) -> Engine:
    """Widen an engine's error to what was seen of its kind."""
    seen = book.error(Kind(engine.model, engine.gpu, engine.tensor_parallel))
    return (
        engine
        if seen is None or seen <= engine.error
        else replace(engine, error=seen, source=engine.source + ", reviewed")
    )


def _note(book: Book, best: Planned, load: Load) -> str:
    engine = best.engine
    kind = Kind(engine.model, engine.gpu, engine.tensor_parallel)
    facts = {"name": load.name, "rate": load.rate, "replicas": best.candidate.replicas, **asdict(load.shape)}
    return book.predict(kind, facts, asdict(best.ranges))


# --- points, observations, review -------------------------------------------------------------------------------------


def _check(path: Path, *, as_json: bool) -> int:
    scores = score(read_points(path))
    if as_json:
        sys.stdout.write(json.dumps(scores.as_json(), indent=2) + "\n")
    else:
        show_scores(scores, screen())
    return 0


def show_scores(scores: Scores, console: Console) -> None:
    """Print how the prior does on measured points."""
    table = Table(title="The prior on measured points")
    names = ("model", "system", "precision", "TP", "points", "TPOT error", "bias", "TTFT error", "bias", "")
    add_columns(table, *names, words=("model", "system", "precision", ""))
    for each in scores.configs:
        data = each.as_json()
        table.add_row(
            Text(each.config.model),
            Text(each.config.system),
            Text(each.config.precision),
            str(each.config.tensor_parallel),
            str(each.points),
            f"{data['median_tpot_error']:.1%}",
            f"{data['tpot_bias']:+.1%}",
            f"{data['median_ttft_error']:.1%}",
            f"{data['ttft_bias']:+.1%}",
            "seen by the prior" if each.in_calibration else "",
        )
    print_table(table, console, keys=4)
    whole = scores.as_json()
    if scores.configs:
        console.print(
            f"Median error: TPOT {whole['median_tpot_error']:.1%}, TTFT {whole['median_ttft_error']:.1%}",
            highlight=False,
        )
    for lost in scores.skipped:
        text = (
            f"{lost['model']} {lost['system']} {lost['precision']}: {counted(lost['points'], 'point')}, {lost['why']}"
        )
        console.print(escape(f"skipped: {text}"), highlight=False)


def _observe(book: Book, plan_id: str, file: str, *, as_json: bool) -> int:
    try:
        report = json.loads(Path(file).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"observe: {file} cannot be read: {plain_reason(error)}") from error
    if not isinstance(report, dict):
        raise SettingsError(f"observe: {file} must hold one JSON object")
    seen = book.observe(plan_id, report)
    if as_json:
        sys.stdout.write(json.dumps({"id": plan_id, "seen": seen}, indent=2) + "\n")
    else:
        noted = f"noted for {plan_id}: " + ", ".join(f"{k} {v:.4g}" for k, v in seen.items())
        screen().print(escape(noted), highlight=False)
    return 0


def _review(book: Book, *, as_json: bool) -> int:
    found = book.review()
    if as_json:
        rows = [
            {**asdict(kind), "figures": {name: asdict(each) for name, each in figures.items()}}
            for kind, figures in found.items()
        ]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    console = screen()
    if not found:
        console.print("No prediction has been observed yet; nothing is known of the planner's error here.")
    for kind, figures in found.items():
        table = Table(title=escape(str(kind)), title_justify="left")
        add_columns(table, "figure", "observed", "median error", "bias", "within range", words=("figure",))
        for name, each in figures.items():
            table.add_row(
                name, str(each.count), f"{each.median_error:.1%}", f"{each.bias:+.1%}", f"{each.coverage:.0%}"
            )
        print_table(table, console)
    return 0
