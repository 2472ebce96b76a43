"""`penstock plan`: plans for a load, prints the plan, and keeps it for a review."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from cluster.errors import SettingsError
from cluster.plural import counted
from cluster.terminal.console import messages, print_note, screen
from cluster.terminal.lines import ProgressLines
from loadtest.plan.engine.abilities import check_abilities
from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.engine.gpus import GPUS, Gpu, load_gpu
from loadtest.plan.engine.precision import canonical
from loadtest.plan.goals.chart import GUESS
from loadtest.plan.goals.settings import VALUES_FILE, check_name, pool_of, write
from loadtest.plan.measured.files import OwnEngine, read_own
from loadtest.plan.measured.own import LEAST_TTFT_ERROR, SEVERAL, Corrections, engine_said, points_for, what_next
from loadtest.plan.option import Engine, Layout, Promise
from loadtest.plan.prices import check_prices, prices_of
from loadtest.plan.profiled import LEAST_PROFILE_ERROR, engine_of, for_load
from loadtest.plan.report import Plan, show
from loadtest.plan.review import Book, EngineGroup
from loadtest.plan.search import PARALLEL, Rejected, SimulatedCandidate, engines, plan
from loadtest.plan.traffic import USUAL, Load, load_of_lengths, recorded_load, steady_load, usual_within
from loadtest.plan.verbs.effects import check_load
from loadtest.plan.what_if import Choices, Listed, WhatIf, autoscaled, ways_out, what_ifs
from loadtest.profile.stored import Profile, read_profile
from loadtest.report.origin import origin
from loadtest.traces import trace_file

COMPARED = ("h100", "h200", "b200", "l40s")
"""What-ifs look at these accelerators too."""
INFEASIBLE = 3
"""Exit status where nothing keeps the SLO."""


@dataclass(frozen=True, slots=True)
class _Model:
    """A model, and the choices to run it with."""

    listed: Listed
    asked: Choices
    other: Choices
    """Choices beside those that were asked for."""
    freer: Listed | None
    """The same as `listed` with all tensor parallel sizes; None where no size was asked for."""

    def what_ifs(self, best: Sequence[SimulatedCandidate], load: Load, promise: Promise) -> list[WhatIf]:
        if not best:
            return ways_out(self.listed, load, promise, self.asked, self.other, self.freer)
        precisions = sorted({*self.asked.precisions, *self.other.precisions})
        gpus = [*self.asked.gpus, *self.other.gpus]
        return what_ifs(self.listed, best, load, promise, precisions=precisions, gpus=gpus)


@dataclass(frozen=True, slots=True)
class Offer:
    """Engines to choose from."""

    engines: list[Engine]
    rejected: list[Rejected] = field(default_factory=list)
    model: _Model | None = None
    """None for a profile, which is of one engine."""
    corrections: Corrections = field(default_factory=Corrections)

    def with_history(self, book: Book) -> Offer:
        """Return the offer with engines as observations of earlier plans had them."""
        return replace(self, engines=[with_history(each, book) for each in self.engines])


def make_plan(options: argparse.Namespace, book: Book) -> int:
    """Plan, print the plan and keep it. Return 0, or `INFEASIBLE`.

    Raises:
        SettingsError: a flag is missing or out of range, or the model or accelerator is unknown.
        TraceError: a trace cannot be read.
    """
    if options.html and not Path(options.html).absolute().parent.is_dir():
        raise SettingsError(f"html must name a file in a folder that exists, got {options.html}")
    if options.apply:
        if options.profile:
            raise SettingsError("apply: a profile does not tell which model an engine loads; plan with model and gpu")
        check_name(str(options.model))
    profile = read_profile(Path(options.profile)) if options.profile else None
    load = load_of(options, profile)
    promise = promise_of(options, [load])
    offer = _from_profile(options, profile, load) if profile is not None else offer_of(options, load)
    offer.corrections.check(offer.engines)
    offer = offer.with_history(book)
    console = messages()
    with console.status("sizing") as status:
        lines = ProgressLines(console)

        def tell(text: str) -> None:
            status.update(escape(text))
            lines(text)

        best, rest, lost = plan(
            offer.engines,
            load,
            promise,
            simulated=options.simulate,
            draws=options.draws,
            seed=options.seed,
            tell=tell,
        )
        tell("what if")
        changes = offer.model.what_ifs(best, load, promise) if offer.model else []
        if best and load.trace:
            tell("the load with the autoscaler")
            changes.append(autoscaled(best[0].candidate, load, promise, options.cold_start))
    name = offer.engines[0].model if offer.engines else str(options.model)
    found = Plan(
        name,
        load,
        promise,
        best,
        rest,
        [*offer.rejected, *lost],
        changes,
        options.currency,
        offer.corrections.words(),
        _next(best, load, offer) if offer.model else "",
        str(options.model or ""),
    )
    ids = [_note(book, each, load) for each in best[:1]] if not options.no_store else []
    _print(found, ids, options)
    if options.apply:
        _apply(found, options)
    return 0 if found.feasible else INFEASIBLE


def promise_of(options: argparse.Namespace, loads: Iterable[Load]) -> Promise:
    """Return the SLO that flags ask for. Without one on the time between tokens the usual one is on its gaps, where
    outputs have any.

    Raises:
        SettingsError: there is one on the time between tokens, and no output has two.
    """
    gaps = any(each.has_gaps for each in loads)
    for name, value in (("slo-itl", options.slo_itl), ("slo-tpot", options.slo_tpot)):
        if value is not None and not gaps:
            raise SettingsError(f"{name} has no effect where no output has a second token, got {value:g}")
    usual = Promise().itl_p95_s if options.slo_tpot is None and gaps else math.inf
    return Promise(
        options.slo_ttft,
        usual if options.slo_itl is None else options.slo_itl,
        options.attainment,
        math.inf if options.slo_tpot is None else options.slo_tpot,
        options.confidence,
    )


def _from_profile(options: argparse.Namespace, profile: Profile, load: Load) -> Offer:
    prices = prices_of(options.price, profile.hardware)
    check_prices(prices, [profile.hardware])
    return Offer([for_load(engine_of(profile, prices), profile, load)])


def offer_of(options: argparse.Namespace, load: Load) -> Offer:
    """Return the engines that can run the model that flags name.

    Raises:
        SettingsError: a flag is missing or out of range, the model or accelerator is unknown, or no accelerator runs a
            precision that was asked for.
    """
    prices = prices_of(options.price)
    if not options.model:
        raise SettingsError("give --model, --profile, --check-points, --observe or --review")
    shape = load_shape(options.model)
    if shape.encoder and not options.embeddings:
        raise SettingsError(f"model: {options.model} reads texts and generates none; add --embeddings")
    gpus = [load_gpu(name) for name in options.gpu.split(",")]
    _check_once("gpu", [gpu.name for gpu in gpus])
    # Other goals have no what-ifs, so nothing is compared with what was not asked for.
    others = () if options.budget or options.requests or options.also else COMPARED
    check_prices(prices, [*(gpu.name for gpu in gpus), *others])
    precisions = [canonical(each) for each in (options.precision or shape.native).split(",")]
    _check_once("precision", precisions)
    for size in ("tp", "pp", "dp"):
        _check_once(size, getattr(options, size) or ())
    parallel = tuple(options.tp) if options.tp else PARALLEL
    kv_bytes = 1.0 if options.kv_cache_dtype == "fp8" else 2.0
    check_abilities(shape, gpus, precisions, kv_element_bytes=kv_bytes)
    plain = partial(
        engines,
        shape,
        prices=prices,
        parallel=parallel,
        kv_element_bytes=kv_bytes,
        layouts=_layouts(options),
        length=load.shape.peak_tokens,
    )
    narrower = () if shape.native == "mxfp4" else ("fp8", "int4")
    corrections = _corrections(options, gpus, precisions)

    def listed(chosen: Iterable[Gpu], widths: Iterable[str], **others: Any) -> tuple[list[Engine], list[Rejected]]:
        made, lost = plain(chosen, widths, **others)
        return corrections.of(made), lost

    asked = Choices(gpus, precisions)
    other = Choices(
        [GPUS[name] for name in COMPARED if GPUS[name] not in gpus],
        [each for each in narrower if each not in precisions],
    )
    freer = partial(listed, parallel=PARALLEL, layouts=None) if options.tp else None
    return Offer(*listed(gpus, precisions), _Model(listed, asked, other, freer), corrections)


def _check_once(field: str, values: Sequence[str | int]) -> None:
    """Refuse a choice that is given twice, perhaps by two names: it would be planned for and simulated twice.

    Raises:
        SettingsError: there is such a choice.
    """
    for each in values:
        if values.count(each) > 1:
            raise SettingsError(f"{field}: {each} is given {values.count(each)} times, and can be given once")


def _corrections(options: argparse.Namespace, gpus: Sequence[Gpu], precisions: Sequence[str]) -> Corrections:
    """Read the points that flags name, with the engine that flags say."""
    if not options.points:
        if options.points_of:
            raise SettingsError("points-of says what points are of; give points")
        return Corrections()
    points = [point for file in options.points for point in read_own(Path(file).expanduser())]
    if options.points_of:
        said = engine_said(options.points_of)
    else:
        tensor = options.tp[0] if options.tp and len(options.tp) == 1 else 0
        alone = (gpus[0].name if len(gpus) == 1 else "", precisions[0] if len(precisions) == 1 else "")
        said = OwnEngine("", alone[0], tensor, alone[1])
    sizes = [*(options.pp or ()), *(options.dp or ())]
    if sizes:
        one = len(sizes) == 1
        said = replace(
            said,
            pipeline_parallel=(options.pp[0] if options.pp else 1) if one else SEVERAL,
            data_parallel=(options.dp[0] if options.dp else 1) if one else SEVERAL,
        )
    # What a file tells goes before what flags let us assume.
    return Corrections(points_for(points, said, strict=bool(options.points_of)))


def _next(best: Sequence[SimulatedCandidate], load: Load, offer: Offer) -> str:
    """Return what to measure next of the best engine, unless enough of it is known."""
    if not best:
        return ""
    candidate = best[0].candidate
    if load.shape.output_tokens <= 1:
        return ""
    return what_next(candidate.engine, load.shape, candidate.operation.batch, offer.corrections.points)


def _layouts(options: argparse.Namespace) -> list[Layout] | None:
    """Return the splits that flags ask for beside tensor parallelism; None for those that make sense."""
    if options.pp and options.dp:
        raise SettingsError("pp and dp: give one of them; no plan is made for both at once")
    if options.pp or options.dp:
        return [Layout(pipeline=each) for each in options.pp or ()] + [Layout(data=each) for each in options.dp or ()]
    return [Layout()] if options.tp else None


def load_of(options: argparse.Namespace, profile: Profile | None) -> Load:
    """Return the load that flags describe.

    Raises:
        SettingsError: a flag is missing, out of range, or without effect.
        TraceError: a trace cannot be read.
    """
    check_load(options)
    _check_embeddings(options)
    if options.trace:
        file = Path(trace_file(options.trace))
        return recorded_load(file, options.limit, options.scale_rate, factor=options.rate_factor, tell=print_note)
    if not options.rate:
        raise SettingsError("give --rate or --trace")
    if options.lengths:
        return load_of_lengths(options.rate, Path(trace_file(options.lengths)), options.prefix_hit)
    usual = USUAL if profile is None else usual_within(min(profile.context, profile.kv_tokens), options.spread)
    prompt = usual.prompt_tokens if options.prompt_tokens is None else options.prompt_tokens
    output = usual.output_tokens if options.output_tokens is None else options.output_tokens
    if options.embeddings:
        # The vector comes with the step that reads the text's end.
        output = 1.0
    load = steady_load(options.rate, prompt, output, options.spread, options.prefix_hit)
    load = replace(load, vectors=options.embeddings)
    if profile is not None:
        return load.within(profile.context)
    return load.within(load_shape(options.model).context) if options.model else load


def _check_embeddings(options: argparse.Namespace) -> None:
    if not options.embeddings:
        return
    others = (("output-tokens", options.output_tokens), ("slo-itl", options.slo_itl), ("slo-tpot", options.slo_tpot))
    for name, value in (*others, ("trace", options.trace), ("lengths", options.lengths)):
        if value is not None:
            raise SettingsError(f"{name}: embeddings have no output tokens, got {value}")


def with_history(engine: Engine, book: Book) -> Engine:
    """Return the engine as observations of earlier plans of its group had it: not the prior with a wider range, but
    another middle with the error that remains.
    """
    seen = book.shift(_group(engine))
    if seen is None:
        return engine
    words = f"{engine.source}, shifted by {counted(seen.count, 'observation')} ({seen.itl:.2f} times as long)"
    return replace(
        engine.scaled(seen.itl, seen.itl, seen.itl, seen.ttft / seen.itl),
        error=max(LEAST_PROFILE_ERROR, seen.error),
        ttft_error=engine.ttft_error if seen.ttft_error is None else max(LEAST_TTFT_ERROR, seen.ttft_error),
        source=words,
        shifted=(seen.itl, seen.ttft),
    )


def _group(engine: Engine) -> EngineGroup:
    return EngineGroup(engine.model, engine.gpu, engine.gpus, engine.precision, engine.layout.split, engine.measured)


def _apply(found: Plan, options: argparse.Namespace) -> None:
    """Write the best candidate's settings.

    Raises:
        SettingsError: there is none, or a pool cannot be so.
    """
    if not found.feasible:
        raise SettingsError("apply: nothing keeps this SLO, so there is nothing to write")
    best = found.planned[0].candidate
    cold_start_s = options.cold_start if found.load.trace else None
    load = found.load
    pool = pool_of(best, found.promise, options.model, cold_start_s, vectors=load.vectors, longest=load.longest)
    for file in write(Path(options.apply).expanduser(), options.model, pool, best.engine.gpu):
        messages().print(f"wrote {escape(str(file))}", highlight=False, soft_wrap=True)
    messages().print(f"{VALUES_FILE}: {GUESS}; its comments say what else to look at", highlight=False, soft_wrap=True)


def _note(book: Book, best: SimulatedCandidate, load: Load) -> str:
    """Keep the plan's prediction. Return its id."""
    engine = best.engine
    facts = {"name": load.name, "rate": load.rate, "replicas": best.candidate.replicas, **asdict(load.shape)}
    return book.predict(_group(engine), facts, asdict(best.ranges), shifted=engine.shifted)


def _print(found: Plan, ids: Sequence[str], options: argparse.Namespace) -> None:
    if options.html:
        from loadtest.plan.page import write_html

        write_html(Path(options.html), found, origin())
    if options.json:
        sys.stdout.write(
            json.dumps({**found.as_json(), "prediction_ids": list(ids), "origin": origin()}, indent=2) + "\n"
        )
        return
    console = screen()
    show(found, console)
    if ids:
        console.print(
            f"Kept as {ids[0]}: `penstock plan --observe {ids[0]} REPORT.json` notes what happened.", highlight=False
        )
