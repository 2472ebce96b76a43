"""The batch policy on a real engine: does it hold an ITL SLO, and how much throughput does it cost?

An engine gets more requests than any batch holds. The policy gets an SLO between the latencies of the smallest and the
largest static limit. It runs in slices of a second or two, in turns with all static limits, so that other work of the
machine affects all of them. Then it gets a loose SLO. The report compares ratios of this one run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from cluster.clock import SystemClock
from cluster.control.replay import itl_of
from cluster.control.step_model import StepSample
from cluster.models import GenerationSpec, PromptLogprobs, SequenceEnd
from cluster.settings import ControlSettings, PoolSettings, VllmSettings
from deployments.engines.base import Engine, EngineIdentity
from deployments.engines.factory import build_engine
from deployments.replica.governor import Governor
from loadtest.benchmarks.ending import end
from penstock.models import PositionLogprobs, SamplingParams
from penstock.values.slo import ClassSlo, OperatingPoint

STATIC_LIMITS = (8, 16, 24, 32, 48, 64)
PROMPT_TOKENS = (16, 64)
OUTPUT_TOKENS = (32, 96)
ROUNDS = 4
SETTLE = 0.3
"""Part of a slice that is ignored after the limit moved."""


@dataclass(frozen=True, slots=True)
class OverloadFigures:
    """Measurements of some seconds of overload."""

    limit: int
    """Limit at the end."""
    itl_p95_s: float
    tokens_per_s: float
    batch: float = 0.0
    """Sequences per step, on average."""


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a run."""

    static: tuple[OverloadFigures, ...]
    slo_s: float
    loop: OverloadFigures
    best_static: OverloadFigures | None
    """Of the static limits that hold the SLO, the one with the most tokens per second; None when none does."""
    loop_over_best: float | None
    """Ratio of the policy's tokens per second to those of the best static limit."""
    slo_loose_s: float
    loop_loose: OverloadFigures
    step_error_median: float | None
    step_error_mean: float | None
    model: dict[str, Any] | None

    @property
    def disturbed(self) -> bool:
        """Whether other work on the machine hid the difference in latency between batch sizes."""
        latencies = [each.itl_p95_s for each in self.static]
        falls = any(later < 0.85 * earlier for earlier, later in itertools.pairwise(latencies))
        return falls or latencies[-1] < 1.5 * latencies[0]


class Overload:
    """Load that keeps as many sequences in the engine as the window allows, as routers do.

    It also records the steps.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._random = random.Random(1)
        self._ids = itertools.count()
        self._submitting: set[asyncio.Task[None]] = set()
        self.window = 1
        self.held = 0
        self.failed = 0
        self.steps: list[StepSample] = []
        self.stopping = False
        self._idle = asyncio.Event()

    # --- the governor's view ---

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def take_steps(self) -> list[StepSample]:
        """Pass the steps on and keep them."""
        taken = self._engine.take_steps()
        self.steps += taken
        return taken

    async def set_limit(self, limit: int) -> int:
        """Move engine and window."""
        applied, _ = await self._engine.set_batch_limits(limit, None)
        self.window = applied
        self.refill()
        return applied

    def drop_steps(self) -> None:
        """Forget the steps so far. The governor never sees them."""
        self._engine.take_steps()
        self.steps.clear()

    # --- load ---

    def refill(self) -> None:
        """Start sequences while there is room."""
        while self.held < self.window and not self.stopping:
            self.held += 1
            task = asyncio.ensure_future(self._submit())
            self._submitting.add(task)
            task.add_done_callback(self._submitting.discard)

    async def _submit(self) -> None:
        prompt = [self._random.randint(3, 400) for _ in range(self._random.randint(*PROMPT_TOKENS))]
        sampling = SamplingParams(self._random.randint(*OUTPUT_TOKENS), temperature=0.0, ignore_eos=True)
        await self._engine.submit(f"load-{next(self._ids)}", GenerationSpec(prompt, sampling), _Sink(self))

    def ended(self, end: SequenceEnd) -> None:
        """Count the end, and start the next sequence."""
        self.held -= 1
        self.failed += bool(end.error)
        self.refill()
        if not self.held:
            self._idle.set()

    async def stop(self) -> None:
        """Start no more sequences and wait for those that run."""
        self.stopping = True
        if self.held:
            await self._idle.wait()


class _Sink:
    def __init__(self, load: Overload) -> None:
        self._load = load

    def on_prompt_logprobs(self, found: PromptLogprobs) -> None:
        """Ignore what nobody asks for."""

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        pass

    def on_end(self, end: SequenceEnd) -> None:
        self._load.ended(end)


async def measure(engine: Engine, identity: EngineIdentity, pool: PoolSettings, seconds: float) -> Report:
    """Run all measurements on a running engine. Takes about 70 times `seconds`."""
    load = Overload(engine)
    # A new engine's first batches of a size take longer, and would loosen the SLO.
    for limit in STATIC_LIMITS:
        await _static(load, limit, 0.5 * seconds)
    first = {limit: await _static(load, limit, seconds) for limit in (STATIC_LIMITS[0], STATIC_LIMITS[-1])}
    fast, slow = (itl_of(first[limit], 0.95) for limit in (STATIC_LIMITS[0], STATIC_LIMITS[-1]))
    slo_s, loose_s = (fast + slow) / 2, slow * 1.5
    governor = Governor(cast(Engine, load), pool, identity.windows, SystemClock(), load.set_limit, lambda: load.held)
    governor.set_operating_point(_point(slo_s))
    await governor.start()
    await _governed(load, governor, 10 * seconds)
    static: dict[int, list[StepSample]] = {limit: [] for limit in STATIC_LIMITS}
    loop: list[StepSample] = []
    for _ in range(ROUNDS):
        for limit in STATIC_LIMITS:
            chosen = load.window
            static[limit] += await _static(load, limit, 0.5 * seconds)
            await load.set_limit(chosen)
            await asyncio.sleep(SETTLE * seconds)
            loop += await _governed(load, governor, seconds)
    chosen = load.window
    governor.set_operating_point(_point(loose_s))
    await _governed(load, governor, 8 * seconds)
    loose = await _governed(load, governor, 2 * seconds)
    loose_limit = load.window
    await load.stop()
    if load.failed:
        raise AssertionError(f"{load.failed} requests failed")
    return _report(
        tuple(_measured(limit, steps) for limit, steps in static.items()),
        (slo_s, _measured(chosen, loop)),
        (loose_s, _measured(loose_limit, loose)),
        governor,
    )


def _report(
    static: tuple[OverloadFigures, ...],
    tight: tuple[float, OverloadFigures],
    loose: tuple[float, OverloadFigures],
    governor: Governor,
) -> Report:
    slo_s, loop = tight
    best = max(
        (each for each in static if 0 < each.itl_p95_s <= slo_s), key=lambda each: each.tokens_per_s, default=None
    )
    model = governor.fit.model
    return Report(
        static=static,
        slo_s=slo_s,
        loop=loop,
        best_static=best,
        loop_over_best=loop.tokens_per_s / best.tokens_per_s if best else None,
        slo_loose_s=loose[0],
        loop_loose=loose[1],
        step_error_median=governor.fit.median_error,
        step_error_mean=governor.fit.mean_error,
        model=asdict(model) if model else None,
    )


async def _static(load: Overload, limit: int, seconds: float) -> list[StepSample]:
    """Return the steps of a while under a fixed limit: those with a batch near it."""
    await load.set_limit(limit)
    await asyncio.sleep(SETTLE * seconds)
    load.drop_steps()
    await asyncio.sleep(seconds)
    load.take_steps()
    return [step for step in load.steps if abs(step.sequences - limit) <= max(1.0, 0.1 * limit)]


async def _governed(load: Overload, governor: Governor, seconds: float) -> list[StepSample]:
    """Return the steps of a while under the policy."""
    load.drop_steps()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await asyncio.sleep(min(0.5, seconds))
        await governor.tick()
    return list(load.steps)


def _measured(limit: int, steps: list[StepSample]) -> OverloadFigures:
    tokens, seconds = sum(step.sequences for step in steps), sum(step.seconds for step in steps)
    return OverloadFigures(
        limit, itl_of(steps, 0.95), tokens / seconds if seconds else 0.0, tokens / max(1, len(steps))
    )


def _point(itl_s: float) -> OperatingPoint:
    return OperatingPoint(interactive=ClassSlo(itl_p95_s=itl_s))


def bench_pool(model: str = "demo") -> PoolSettings:
    return PoolSettings(
        model=model, vllm=VllmSettings(max_num_seqs=STATIC_LIMITS[-1]), control=ControlSettings(window_s=8.0)
    )


async def _run(seconds: float) -> Report:
    pool = bench_pool()
    engine = build_engine(pool)
    try:
        return await measure(engine, await engine.start(), pool, seconds)
    finally:
        await engine.close()


def show(report: Report, console: Console) -> None:
    for each in report.static:
        console.print(f"limit {each.limit:3}: p95 ITL {each.itl_p95_s * 1e3:6.2f} ms {each.tokens_per_s:8.0f} tokens/s")
    for name, slo_s, each in (("loop", report.slo_s, report.loop), ("loose", report.slo_loose_s, report.loop_loose)):
        console.print(
            f"{name}: SLO {slo_s * 1e3:.2f} ms, p95 ITL {each.itl_p95_s * 1e3:.2f} ms, "
            f"{each.tokens_per_s:.0f} tokens/s, batch {each.batch:.1f}, limit {each.limit} at the end"
        )
    if report.disturbed:
        console.print("Latency does not grow with the batch: other work disturbs this machine, and nothing follows.")
    console.print(f"loop over best static: {report.loop_over_best}; step error, median: {report.step_error_median}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=None, help="write the report there")
    parser.add_argument("--seconds", type=float, default=2.0, help="per static limit")
    options = parser.parse_args()
    report = asyncio.run(_run(options.seconds))
    show(report, Console())
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(report), indent=1))


if __name__ == "__main__":
    end("bench-control", main)
