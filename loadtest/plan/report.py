"""Output of a plan: as a table and as JSON. `page` makes a page of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape as as_it_is
from rich.table import Table
from rich.text import Text

from cluster.plural import counted
from cluster.terminal.tables import add_columns, print_table
from loadtest.plan.engine.gpus import GPUS
from loadtest.plan.option import Engine, Promise
from loadtest.plan.search import Candidate, Rejected, SimulatedCandidate, priced
from loadtest.plan.traffic import Load
from loadtest.plan.trial import Range
from loadtest.plan.what_if import WhatIf, measurements


@dataclass(frozen=True, slots=True)
class Plan:
    """Result of `penstock plan`."""

    model: str
    load: Load
    promise: Promise
    planned: Sequence[SimulatedCandidate]
    """Simulated candidates, the best first."""
    on_paper: Sequence[Candidate]
    """Candidates that were not simulated."""
    rejected: Sequence[Rejected]
    what_ifs: Sequence[WhatIf]
    currency: str = ""
    """Currency of the prices, such as USD. Empty where the user named none."""
    measured: Sequence[str] = ()
    """How measured points moved the errors of engines."""
    next_points: str = ""
    """Points of the best engine that say most about it, as words."""
    asked: str = ""
    """The model as the user named it."""

    @property
    def title(self) -> str:
        """The model in words: as it was asked for, and the architecture that is planned for where that has another
        name.
        """
        return model_words(self.asked, self.model)

    @property
    def feasible(self) -> bool:
        """Whether any candidate keeps the promise."""
        return any(each.holds for each in self.planned)

    def as_json(self) -> dict[str, Any]:
        """Return the data of `--json`. Times are in seconds, costs in the currency of the prices."""
        return {
            "model": self.model,
            "load": {"name": self.load.name, "rate": self.load.rate, **asdict(self.load.shape)},
            "slo": {name: _finite(value) for name, value in asdict(self.promise).items()},
            "feasible": self.feasible,
            "currency": self.currency,
            "candidates": [_planned(each, self.load, self.promise) for each in self.planned],
            "on_paper": [_paper(each, self.load) for each in self.on_paper],
            "rejected": [asdict(each) for each in self.rejected],
            "what_ifs": [asdict(each) for each in self.what_ifs],
            "measured": list(self.measured),
            "measure_next": self.next_points,
        }


def model_words(asked: str, known: str) -> str:
    """Return a model as a user named it, and the known architecture where that has another name."""
    own = asked.rstrip("/").rsplit("/", 1)[-1]
    return known if not own.strip(".") or own.lower() == known.lower() else f"{own} (planned as {known})"


def _finite(value: float) -> float | None:
    """Return a bound; None where there is none, because JSON has no infinity."""
    return value if math.isfinite(value) else None


def _paper(each: Candidate, load: Load) -> dict[str, Any]:
    engine, operation = each.engine, each.operation
    return {
        "gpu": engine.gpu,
        "tp": engine.tensor_parallel,
        "precision": engine.precision,
        "replicas": each.replicas,
        "gpus": each.gpus,
        "batch_limit": operation.batch,
        "step_tokens": operation.step_tokens,
        "kv_tokens": engine.kv_tokens,
        "kv_starved": engine.starved,
        "source": engine.source,
        "error": engine.error,
        "ttft_error": engine.ttft_error if engine.ttft_error is not None else engine.error,
        "pipeline_parallel": engine.layout.pipeline,
        "data_parallel": engine.layout.data,
        "gpus_per_replica": engine.gpus,
        "engine_flags": engine_flags(each, load),
        "fallback": engine.fallback,
        "binding": operation.binding,
        "cost_per_hour": each.hourly,
    }


def _planned(each: SimulatedCandidate, load: Load, promise: Promise) -> dict[str, Any]:
    steps, first = each.engine.margin(promise.confidence)
    return {
        **_paper(each.candidate, load),
        "margin": {"steps": steps, "first_token": first},
        "binding": each.binding,
        "holds": each.holds,
        "attainment_when_sure": each.sure,
        "attainment_at_worst": each.worst,
        "confidence_with_one_less": each.with_one_less,
        "predicted": asdict(each.ranges),
        "cost_per_million_tokens": each.per_million_tokens(load),
        "cost_per_million_output_tokens": each.per_million_tokens(load, output_only=True),
    }


def slo_words(promise: Promise) -> str:
    bounds = [f"TTFT p99 {promise.ttft_p99_s:g} s"]
    if math.isfinite(promise.itl_p95_s):
        bounds.append(f"ITL p95 {1e3 * promise.itl_p95_s:g} ms")
    if math.isfinite(promise.tpot_s):
        bounds.append(f"mean TPOT {1e3 * promise.tpot_s:g} ms")
    return f"{', '.join(bounds)} for {promise.attainment:.1%}"


def source_words(engine: Engine) -> str:
    """Return where step times come from, and how far off they may be."""
    step, first = engine.error, engine.error if engine.ttft_error is None else engine.ttft_error
    return f"{engine.source} (mean error of step times {step:.0%}, of the first token {first:.0%})"


def engine_flags(candidate: Candidate, load: Load) -> str:
    """Return the flags of vLLM that make an engine as it was planned."""
    engine, operation = candidate.engine, candidate.operation
    # Models that can do both would generate.
    flags = ["--runner pooling"] if load.vectors else []
    flags.append(f"--tensor-parallel-size {engine.tensor_parallel}")
    if engine.layout.pipeline > 1:
        flags.append(f"--pipeline-parallel-size {engine.layout.pipeline}")
    if engine.layout.data > 1:
        flags.append(f"--data-parallel-size {engine.layout.data} --enable-expert-parallel")
    if engine.quantized:
        flags.append("--quantization fp8")
    if (context := engine.context_for(load.longest)) is not None:
        flags.append(f"--max-model-len {context}")
    if engine.kv_element_bytes < 2:
        flags.append("--kv-cache-dtype fp8")
    if engine.gpu in GPUS and not GPUS[engine.gpu].has_bf16:
        flags.append("--dtype half")
    tokens = max(operation.step_tokens, operation.batch)
    return " ".join([*flags, f"--max-num-seqs {operation.batch}", f"--max-num-batched-tokens {tokens}"])


def fallbacks(engines: Iterable[Engine]) -> list[str]:
    """Return how engines run precisions for which their accelerators have no units, as sentences."""
    return [f"Precision: {text}." for text in dict.fromkeys(each.fallback for each in engines) if text]


def _less_words(planned: SimulatedCandidate, promise: Promise) -> str:
    sure, known = (f"{each or 0.1:.0%}".replace("%", " %") for each in (promise.confidence, planned.with_one_less))
    less = f"{counted(planned.candidate.replicas - 1, 'replica')} of {planned.engine.name}"
    return (
        f"{less} would be enough with a confidence {'of' if planned.with_one_less else 'below'} {known}, where {sure} "
        f"were asked for; {measurements(planned.engine)} tell more."
    )


def _margins(engines: Sequence[Engine], promise: Promise) -> list[str]:
    """Return how much slower than predicted engines are taken to be, as sentences."""
    sure = f"{promise.confidence:.0%}".replace("%", " %")
    made = []
    for words in dict.fromkeys(source_words(each) for each in engines):
        alike = [each for each in engines if source_words(each) == words]
        steps, first = alike[0].margin(promise.confidence)
        of = ", ".join(each.name for each in alike)
        made.append(
            f"Margin of {of}: for a confidence of {sure} steps count as {steps:.2f} times and first tokens as "
            f"{first:.2f} times as long as predicted."
        )
    return made


def _contexts(engines: Iterable[Engine], load: Load) -> list[str]:
    """Return which engines must be told their context, as sentences."""
    told = ((each, each.context_for(load.longest)) for each in engines)
    return [
        f"Context of {each.name}: {context:,} tokens (--max-model-len) of the model's {each.context:,}: "
        + ("engines take fewer if they are told nothing." if each.untold_context else _NO_ROOM)
        for each, context in told
        if context is not None
    ]


_NO_ROOM = "the KV cache has no room for more."


def notes(plan: Plan) -> list[str]:
    """Return what one must know to read the candidates."""
    made = []
    if plan.planned:
        sources = sorted({source_words(each.engine) for each in plan.planned})
        sure = f"{plan.promise.confidence:.0%}".replace("%", " %")
        made.append(
            "Batch: sequences of tokens per step. Ranges hold 90 % of what is known of the engines' speed: "
            f"{'; '.join(sources)}. Replicas are enough with a confidence of {sure}; "
            "the part of requests that met the SLO is that of an engine as slow as this allows."
        )
    made += _margins([each.engine for each in plan.planned], plan.promise)
    made += [_less_words(each, plan.promise) for each in plan.planned if each.with_one_less is not None]
    made += fallbacks(each.engine for each in plan.planned)
    made += _contexts([each.engine for each in plan.planned], plan.load)
    if any(each.engine.layout.data > 1 for each in plan.planned):
        made.append(
            "Groups of data parallelism step together, and a step ends with the slowest. Their waits for each other's "
            "prompts are in the sizes; in the simulation they are in every step as their mean. Measure such an engine."
        )
    made += [f"Measured: {text}." for text in plan.measured]
    if plan.next_points:
        made.append(f"{plan.next_points}.")
    if any(not each.simulated for each in plan.what_ifs):
        scaled = ", and scaled as the simulation scaled candidates of the best accelerator" if plan.planned else ""
        made.append(f"What-ifs on paper are rough: not simulated{scaled}.")
    compared = [*(each.candidate for each in plan.planned), *plan.on_paper]
    if any(each.hourly is not None for each in compared) and not priced(compared):
        made.append("Ranked by number of GPUs: not all of them have a price.")
    return made


def show(plan: Plan, console: Console) -> None:
    console.print(
        f"[bold]{as_it_is(plan.title)}[/], {as_it_is(plan.load.name)}; {slo_words(plan.promise)}", highlight=False
    )
    if not plan.feasible:
        console.print("[red]Infeasible:[/] nothing that was looked at keeps this SLO.", highlight=False)
    if plan.planned:
        print_table(_table(plan), console)
    for text in notes(plan):
        console.print(as_it_is(text), highlight=False)
    for what in plan.what_ifs:
        console.print(as_it_is(f"  what if {said(what, plan.currency)}"), highlight=False)
    for lost in plan.rejected:
        console.print(f"  [dim]cannot be: {as_it_is(f'{lost.name}: {lost.why}')}[/]", highlight=False)


def said(what: WhatIf, currency: str = "") -> str:
    """Return a what-if as a sentence."""
    if not what.known:
        return f"{what.change}: unknown: {what.outcome}"
    source = "simulated" if what.simulated else "on paper"
    cost = "" if what.hourly is None else f", {money(what.hourly, currency)}/h"
    text = "infeasible" if what.gpus is None else f"{counted(what.gpus, 'GPU')}{cost}"
    return f"{what.change}: {text}: {what.outcome} ({source})"


def _table(plan: Plan) -> Table:
    table = Table(title="Candidates, the best first")
    texts = not plan.load.vectors
    # A vector comes with its first token; nothing is between it and the next.
    names = ["replicas", "batch", "TTFT p99 ms", *(["ITL p95 ms", "tokens/s"] if texts else ["vectors/s"])]
    add_columns(table, *names, "SLO met,\nwhen sure", "cost", "bound by", words=("replicas", "cost", "bound by"))
    for each in plan.planned:
        r, candidate = each.ranges, each.candidate
        met = f"{each.sure:.1%}"
        starved = ", KV starved" if each.engine.starved else ""
        hourly, tokens = money(candidate.hourly, plan.currency), money(each.per_million_tokens(plan.load))
        cost = "-" if candidate.hourly is None else f"{hourly}/h, {tokens} per M tokens"
        table.add_row(
            Text(f"{candidate.replicas} of {each.engine.name}{starved}: {counted(candidate.gpus, 'GPU')}"),
            f"{candidate.operation.batch} of {candidate.operation.step_tokens}",
            span(r.ttft_p99_s, 1e3),
            *([span(r.itl_p95_s, 1e3)] if texts else []),
            span(r.tokens_per_s, 1),
            met if each.sure >= plan.promise.attainment else f"[red]{met}[/]",
            cost,
            Text(each.binding, "" if each.holds else "red"),
        )
    return table


def span(value: Range, factor: float) -> str:
    """Return a range as text."""
    low, high = factor * value.low, factor * value.high
    if not math.isfinite(high):
        return "-"
    return f"{low:,.0f}-{high:,.0f}" if high >= 10 else f"{low:.1f}-{high:.1f}"


def money(value: float | None, currency: str = "") -> str:
    """Return an amount, with its currency if there is one."""
    if value is None:
        return "-"
    amount = f"{value:,.2f}" if 1 <= value < 100 else f"{value:,.3g}" if value < 1 else f"{value:,.0f}"
    return f"{amount} {currency}".strip()
