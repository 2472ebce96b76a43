"""Drives an engine through a grid: so many sequences of so many tokens at once, cell by cell."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cluster.control.step_model import StepModel, StepSample
from cluster.errors import EngineError
from cluster.models import GenerationSpec, PositionLogprobs, SamplingParams, SequenceEnd
from deployments.engines.base import Engine, EngineIdentity
from loadtest.profile.fit import fit_blocks
from loadtest.profile.stored import CellCheck, Profile

BATCHES = (1, 4, 16, 64)
PROMPTS = (16, 256)
OUTPUT = 48
HELD_OUT = ((2, 64, 32), (8, 128, 64), (32, 32, 64), (48, 192, 32))
"""Batch, prompt and output of the cells that check the fit: none of them is in the grid."""
WARM_UP = (4, 32, 8)
TIMEOUT_S = 120.0
"""For one cell."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Is one place of the grid."""

    batch: int
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Measured:
    """Is what a cell showed."""

    cell: Cell
    steps: list[StepSample] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    """Of each sequence, from its submission."""


class _Sink:
    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.first = 0.0
        self.ended: asyncio.Future[SequenceEnd] = asyncio.get_running_loop().create_future()

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        if not self.first:
            self.first = time.perf_counter()

    def on_end(self, end: SequenceEnd) -> None:
        if not self.ended.done():
            self.ended.set_result(end)


def grid(identity: EngineIdentity, step_tokens: int) -> tuple[list[Cell], list[Cell]]:
    """Return the cells to fit and those held out, as far as the engine has room for them."""
    windows, context = identity.windows, identity.model.max_context_tokens
    most = min(windows.sequences, step_tokens)

    def fits(cell: Cell) -> bool:
        longest = cell.prompt_tokens + cell.output_tokens
        return cell.batch <= most and longest <= context and cell.batch * longest <= 0.8 * windows.kv_tokens

    cells = [Cell(batch, prompt, OUTPUT) for batch in BATCHES for prompt in PROMPTS]
    return [each for each in cells if fits(each)], [each for each in (Cell(*c) for c in HELD_OUT) if fits(each)]


async def profile(
    engine: Engine,
    identity: EngineIdentity,
    *,
    name: str,
    rounds: int = 2,
    tell: Callable[[str, int, int], None] = lambda _text, _done, _total: None,
) -> Profile:
    """Measure, fit, check and describe an engine that is up and idle.

    Args:
        engine: the engine.
        identity: what it said when it started.
        name: of the model.
        rounds: how often the grid is driven; what disturbs the machine for a while then meets several cells.
        tell: told what runs, how many cells are done, and how many there are.

    Raises:
        EngineError: a sequence failed, or nothing can be fitted.
    """
    began = time.monotonic()
    _, step_tokens = await engine.set_batch_limits(None, None)
    fitted, held = grid(identity, step_tokens)
    if not fitted or not held:
        raise EngineError("the engine has no room for any cell of the grid")
    driver = _Driver(engine)
    await driver.run(Cell(*WARM_UP))
    total, done = rounds * (len(fitted) + len(held)), itertools.count()
    seen: list[Measured] = []
    checked: dict[Cell, list[StepSample]] = {cell: [] for cell in held}
    for _ in range(rounds):
        for cell in (*fitted, *held):
            tell(f"{cell.batch} x ({cell.prompt_tokens} + {cell.output_tokens})", next(done), total)
            measured = await driver.run(cell)
            if cell in checked:
                checked[cell] += measured.steps
            else:
                seen.append(measured)
    model, fit_error = fit_blocks([each.steps for each in seen])
    checks = tuple(_check(model, cell, found) for cell, found in checked.items() if found)
    lengths = [each.prompt_tokens + each.output_tokens for each in (*fitted, *held)]
    return Profile(
        model=name,
        hardware=identity.hardware,
        tensor_parallel=identity.tensor_parallel_size,
        precision=identity.group_id.rsplit("-", 1)[-1],
        a=model.a,
        b=model.b,
        g=model.g,
        overhead_s=_overhead(model, seen),
        kv_tokens=identity.windows.kv_tokens,
        max_sequences=identity.windows.sequences,
        step_tokens=step_tokens,
        context=identity.model.max_context_tokens,
        samples=sum(len(each.steps) for each in seen),
        fit_error=fit_error,
        error=statistics.fmean(abs(each.error) for each in checks) if checks else 1.0,
        checks=checks,
        batches=(min(each.batch for each in fitted), max(each.batch for each in fitted)),
        lengths=(min(lengths), max(lengths)),
        seconds=time.monotonic() - began,
    )


def _check(model: StepModel, cell: Cell, steps: Sequence[StepSample]) -> CellCheck:
    predicted = statistics.fmean(model.predict(each.tokens, each.kv_tokens) for each in steps)
    measured = statistics.fmean(each.seconds for each in steps)
    return CellCheck(cell.batch, cell.prompt_tokens, cell.output_tokens, predicted, measured)


def _overhead(model: StepModel, seen: Sequence[Measured]) -> float:
    """Return what the first token of a lone sequence took beside its own step."""
    alone = [
        ttft - model.predict(each.cell.prompt_tokens, 0)
        for each in seen
        if each.cell.batch == 1
        for ttft in each.ttft_s
    ]
    return max(0.0, statistics.median(alone)) if alone else 0.0


class _Driver:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._random = random.Random(1)
        self._ids = itertools.count()

    async def run(self, cell: Cell) -> Measured:
        """Run one cell from an idle engine to an idle engine."""
        self._engine.take_steps()
        sinks: list[_Sink] = []
        for _ in range(cell.batch):
            # Other tokens each time, or the prefix cache would answer.
            prompt = [self._random.randint(3, 250) for _ in range(cell.prompt_tokens)]
            sampling = SamplingParams(cell.output_tokens, temperature=0.0, ignore_eos=True)
            sinks.append(_Sink())
            await self._engine.submit(f"profile-{next(self._ids)}", GenerationSpec(prompt, sampling), sinks[-1])
        try:
            async with asyncio.timeout(TIMEOUT_S):
                ends = await asyncio.gather(*(sink.ended for sink in sinks))
        except TimeoutError as error:
            raise EngineError(f"{cell.batch} sequences did not end within {TIMEOUT_S:.0f} s") from error
        failed = next((end.error for end in ends if end.error), None)
        if failed:
            raise EngineError(f"a sequence failed: {failed}")
        return Measured(cell, self._engine.take_steps(), [sink.first - sink.begun for sink in sinks if sink.first])
