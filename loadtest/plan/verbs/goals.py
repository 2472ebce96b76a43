"""`penstock plan` with another goal: a budget, a deadline, or several models on one fleet."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cluster.errors import SettingsError
from cluster.terminal.console import messages, screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.goals.budget import BudgetPlan, affordable, served, why_not
from loadtest.plan.goals.fleet import Also, FleetPlan, also, fleets
from loadtest.plan.goals.offline import OfflinePlan, offline
from loadtest.plan.measured.own import Corrections
from loadtest.plan.option import Engine, Promise
from loadtest.plan.report import fallbacks, model_words, money, slo_words, source_words
from loadtest.plan.review import Book
from loadtest.plan.search import SimulatedCandidate, plan, priced
from loadtest.plan.traffic import Load
from loadtest.plan.verbs.plan import INFEASIBLE, load_of, offer_of, promise_of

_HOUR_S = 3600.0


def serve_budget(options: argparse.Namespace, book: Book) -> int:
    """Print what a budget serves. Return 0, or `INFEASIBLE`.

    Raises:
        SettingsError: a flag is missing or out of range, or an accelerator has no price.
    """
    if options.rate:
        raise SettingsError(f"rate: with a budget it is what the plan looks for, got {options.rate:g}")
    load = _of_any_rate(options)
    promise = promise_of(options, [load])
    offer = offer_of(options, load).with_history(book)
    offer.corrections.check(offer.engines)
    chosen = affordable(offer.engines, load, promise, options.budget)[: options.simulate]
    with messages().status("budget") as status:
        found = [
            served(each, load, promise, seed=options.seed, tell=lambda text: status.update(escape(text)))
            for each in chosen
        ]
    lost = [f"{each.name}: {each.why}" for each in offer.rejected]
    lost += why_not(offer.engines, load, promise, options.budget)
    lost += [f"{each.candidate.engine.name}: no rate that was tried keeps the SLO" for each in found if not each.rate]
    found = sorted((each for each in found if each.rate > 0), key=lambda each: -each.rate)
    if options.json:
        data = {"budget_per_hour": options.budget, "served": [each.as_json() for each in found], "rejected": lost}
        sys.stdout.write(json.dumps({**data, "measured": offer.corrections.words()}, indent=2) + "\n")
    else:
        _show_asked(_title(options.model, offer.engines), [f"requests {_tokens(load)}"], promise.confidence, promise)
        _show_served(found, options, lost)
        _show_measured([offer.corrections])
    return 0 if found else INFEASIBLE


def _title(asked: str, engines: Sequence[Engine]) -> str:
    return model_words(asked, engines[0].model) if engines else asked


def _tokens(load: Load) -> str:
    """Return the mean request in words, and what is special about it."""
    special = load.name.partition(", ")[2]
    mean = f"of {load.shape.prompt_tokens:g} + {load.shape.output_tokens:g} tokens"
    return f"{mean}, {special}" if special else mean


def _show_asked(title: str, loads: Iterable[str], confidence: float, promise: Promise | None = None) -> None:
    """Print what the answer is to: model, load, SLO and confidence."""
    model = f"[bold]{escape(title)}[/], " if title else ""
    slo = f"; {slo_words(promise)}" if promise else ""
    sure = f"{confidence:.0%}".replace("%", " %")
    screen().print(f"{model}{escape(', '.join(loads))}{slo}; sure to {sure}", highlight=False)


def _of_any_rate(options: argparse.Namespace) -> Load:
    """Return the load whose lengths count, at a rate of one request per second."""
    if options.trace:
        raise SettingsError("trace: a recorded load has its own rate; give lengths instead")
    return load_of(argparse.Namespace(**{**vars(options), "rate": 1.0}), None)


def _show_served(found: Sequence[BudgetPlan], options: argparse.Namespace, lost: Sequence[str]) -> None:
    console = screen()
    table = Table(title=f"For {money(options.budget, options.currency)} per hour, the most first")
    names = ("replicas", "GPUs", "requests/s", "output tokens/s", "cost per hour", "batch")
    add_columns(table, *names, words=("replicas",))
    for each in found:
        candidate = each.candidate
        table.add_row(
            Text(f"{candidate.replicas} of {candidate.engine.name}"),
            str(candidate.gpus),
            f"{each.rate:.3g}",
            f"{each.rate * each.shape.output_tokens:,.0f}",
            money(candidate.hourly, options.currency),
            f"{candidate.operation.batch} of {candidate.operation.step_tokens}",
        )
    if found:
        print_table(table, console)
        _show_sources((each.candidate.engine for each in found), console)
    else:
        console.print("[red]Nothing:[/] no engine that was looked at serves this SLO for the budget.", highlight=False)
    for text in lost:
        console.print(f"  [dim]cannot be: {escape(text)}[/]", highlight=False)


def finish_by(options: argparse.Namespace, book: Book) -> int:
    """Print what finishes offline work by a deadline. Return 0, or `INFEASIBLE`.

    Raises:
        SettingsError: a flag is missing or out of range.
    """
    if not (options.requests and options.deadline):
        raise SettingsError("requests and deadline belong together: how many, and in how many hours")
    if options.rate:
        raise SettingsError(f"rate: offline work has none, got {options.rate:g}")
    load = _of_any_rate(options)
    offer = offer_of(options, load).with_history(book)
    offer.corrections.check(offer.engines)
    found, lost = offline(offer.engines, load, options.requests, _HOUR_S * options.deadline, options.confidence)
    if options.json:
        data = {
            "requests": options.requests,
            "deadline_hours": options.deadline,
            "plans": [each.as_json() for each in found],
            "rejected": [f"{each.name}: {each.why}" for each in (*offer.rejected, *lost)],
            "measured": offer.corrections.words(),
        }
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
    else:
        _show_asked(_title(options.model, offer.engines), [f"requests {_tokens(load)}"], options.confidence)
        _show_offline(found, options, [f"{each.name}: {each.why}" for each in (*offer.rejected, *lost)])
        _show_measured([offer.corrections])
    return 0 if found else INFEASIBLE


def _show_offline(found: Sequence[OfflinePlan], options: argparse.Namespace, lost: Sequence[str]) -> None:
    console = screen()
    order = "the cheapest first" if priced(each.candidate for each in found) else "the fewest GPUs first"
    table = Table(title=f"{options.requests:,} requests in {options.deadline:g} hours, {order}")
    add_columns(table, "replicas", "GPUs", "hours", "output tokens/s", "cost", "batch", words=("replicas",))
    for each in found:
        candidate = each.candidate
        table.add_row(
            Text(f"{candidate.replicas} of {candidate.engine.name}"),
            str(candidate.gpus),
            f"{each.seconds / _HOUR_S:.2f}",
            f"{each.tokens_per_s:,.0f}",
            money(each.cost, options.currency),
            f"{candidate.operation.batch} of {candidate.operation.step_tokens}",
        )
    if found:
        print_table(table, console)
        _show_sources((each.candidate.engine for each in found), console)
    else:
        console.print("[red]Infeasible:[/] no engine that was looked at can do this work.", highlight=False)
        for text in lost:
            console.print(f"  [dim]cannot be: {escape(text)}[/]", highlight=False)


def share_fleet(options: argparse.Namespace, book: Book) -> int:
    """Print accelerators of one kind that serve several models. Return 0, or `INFEASIBLE`.

    Raises:
        SettingsError: a flag is missing or out of range, or a model is unknown.
    """
    if not options.model:
        raise SettingsError("model: must be given; also names further ones")
    others = [also(text, options.spread, vectors=options.embeddings) for text in options.also]
    parts = [Also(options.model, load_of(options, None)), *others]
    if len({part.model for part in parts}) < len(parts):
        raise SettingsError("also: each model must be named once")
    promise = promise_of(options, [part.load for part in parts])
    planned, lost = dict[str, Sequence[SimulatedCandidate]](), list[str]()
    loads = [part.load.within(load_shape(part.model).context) for part in parts]
    offers = [
        offer_of(argparse.Namespace(**{**vars(options), "model": part.model}), load).with_history(book)
        for part, load in zip(parts, loads, strict=True)
    ]
    # The points are the same for all, and each is of one of the models.
    offers[0].corrections.check([engine for offer in offers for engine in offer.engines])
    with messages().status("fleet") as status:
        for part, load, offer in zip(parts, loads, offers, strict=True):
            best: list[SimulatedCandidate] = []
            # The best of each kind, because the fleet has one.
            for gpu in dict.fromkeys(engine.gpu for engine in offer.engines):
                here = [engine for engine in offer.engines if engine.gpu == gpu]
                found_here, _, impossible = plan(
                    here,
                    load,
                    promise,
                    simulated=1,
                    draws=options.draws,
                    seed=options.seed,
                    tell=lambda text, model=part.model: status.update(escape(f"{model}: {text}")),  # type: ignore[misc]
                )
                best += found_here
                lost += [f"{part.model}: {each.name}: {each.why}" for each in impossible]
                missed = (each for each in found_here if not each.holds)
                lost += [f"{part.model}: {each.engine.name}: {each.binding}" for each in missed]
            lost += [f"{part.model}: {each.name}: {each.why}" for each in offer.rejected]
            planned[part.model] = best
    found = fleets(planned)
    if options.json:
        measured = [text for offer in offers for text in offer.corrections.words()]
        data = {"fleets": [each.as_json() for each in found], "rejected": lost, "measured": measured}
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
    else:
        told = [
            f"{part.model} {load.rate:g} requests/s {_tokens(load)}" for part, load in zip(parts, loads, strict=True)
        ]
        _show_asked("", told, promise.confidence, promise)
        _show_fleets(found, options, lost)
        _show_measured([offer.corrections for offer in offers])
    return 0 if found else INFEASIBLE


def _show_fleets(found: Sequence[FleetPlan], options: argparse.Namespace, lost: Sequence[str]) -> None:
    console = screen()
    table = Table(title="All models on accelerators of one kind, the best first")
    add_columns(table, "accelerator", "GPUs", "cost per hour", "replicas", words=("accelerator", "replicas"))
    for each in found:
        table.add_row(each.gpu, str(each.gpus), money(each.hourly, options.currency), Text(_parts(each.parts)))
    if found:
        print_table(table, console)
        _show_sources((part.engine for each in found for part in each.parts.values()), console)
    else:
        console.print(
            "[red]Infeasible:[/] no kind of accelerator that was looked at serves all of them.", highlight=False
        )
        for text in lost:
            console.print(f"  [dim]cannot be: {escape(text)}[/]", highlight=False)


def _show_measured(corrections: Iterable[Corrections]) -> None:
    for text in (text for each in corrections for text in each.words()):
        screen().print(escape(f"Measured: {text}."), highlight=False)


def _show_sources(engines: Iterable[Engine], console: Console) -> None:
    """Print where step times come from, and how engines run precisions that accelerators have no units for."""
    chosen = list(engines)
    sources = "; ".join(sorted({source_words(each) for each in chosen}))
    for text in (f"What is known of the engines' speed: {sources}.", *fallbacks(chosen)):
        console.print(escape(text), highlight=False)


def _parts(parts: Mapping[str, SimulatedCandidate]) -> str:
    return "; ".join(f"{model}: {each.candidate.replicas} of {each.engine.name}" for model, each in parts.items())


GOALS: Mapping[str, Any] = {"budget": serve_budget, "deadline": finish_by, "requests": finish_by, "also": share_fleet}
"""Verbs by the flag that asks for them."""
