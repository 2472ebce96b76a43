"""The driver of a grid.

Each cell runs a number of sequences of given lengths at once; late prompts join some batches.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cluster.control.step_model import StepModel, StepSample
from cluster.errors import EngineError
from cluster.plural import counted
from deployments.engines.base import Engine, EngineIdentity
from loadtest.profile.fit import fit_cells
from loadtest.profile.source import EngineSource, Source, Told, steps_seen
from loadtest.profile.stored import CellCheck, Profile

BATCHES = (1, 4, 16, 64)
PROMPTS = (16, 256)
OUTPUT = 48
HELD_OUT = ((2, 64, 32), (8, 128, 64), (32, 32, 64), (48, 192, 32))
"""Batch, prompt and output of the cells that check the fit. None of them is in the grid."""
LARGE_BATCHES, LARGE_PROMPTS = (256,), (2048,)
LARGE_HELD_OUT = ((128, 1024, 64),)
"""Further cells for accelerators. A CPU would take minutes for them."""
BESIDE = (4, 16)
"""Batches that a late prompt joins, to measure how long it waits."""
BESIDE_LENGTHS = (16, 96)
LATE_PROMPT, LATE_OUTPUT, MOST_LATE = 32, 2, 20
WARM_UP = (4, 32, 8)
KV_ROOM = 0.8
TIMEOUT_S = 120.0
"""Longest time for one cell, in seconds."""
LONGER = (2, 6)
LEAST_CELLS = 3
FIT_ROUNDS = 4
"""Rounds in which model and overhead are found in turns, where only clients see the steps."""

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class GridCell:
    """One cell of the grid."""

    batch: int
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class CellMeasurement:
    """Measurements of a cell."""

    cell: GridCell
    steps: list[StepSample] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    """TTFT of each sequence in seconds, from its submission."""


@dataclass(frozen=True, slots=True)
class Late:
    """Prompt that came while other sequences decoded."""

    tokens: int
    beside: int
    """Number of sequences that decoded."""
    context: float
    """Mean number of tokens of each of those sequences."""
    ttft_s: float


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the engine that a profile needs."""

    model: str
    hardware: str
    tensor_parallel: int
    precision: str
    kv_tokens: int
    max_sequences: int
    step_tokens: int
    context: int

    @classmethod
    def of(cls, name: str, identity: EngineIdentity, step_tokens: int) -> Facts:
        """Take the facts from a running engine."""
        return cls(
            model=name,
            hardware=identity.hardware,
            tensor_parallel=identity.tensor_parallel_size,
            precision=identity.group_id.rsplit("-", 1)[-1],
            kv_tokens=identity.windows.kv_tokens,
            max_sequences=identity.windows.sequences,
            step_tokens=step_tokens,
            context=identity.model.max_context_tokens,
        )


def grid(facts: Facts) -> tuple[list[GridCell], list[GridCell]]:
    """Return the cells to fit and those held out, as far as the engine has room for them."""
    large = not facts.hardware.startswith(("cpu", "sim"))
    batches: tuple[int, ...] = BATCHES + LARGE_BATCHES * large
    prompts: tuple[int, ...] = PROMPTS + LARGE_PROMPTS * large
    held: tuple[tuple[int, int, int], ...] = HELD_OUT + LARGE_HELD_OUT * large
    cells = [GridCell(batch, prompt, OUTPUT) for batch in batches for prompt in prompts]
    checks = [GridCell(*each) for each in held]
    return [each for each in cells if fits(each, facts)], [each for each in checks if fits(each, facts)]


def fits(cell: GridCell, facts: Facts) -> bool:
    """Return whether an engine has room for a cell."""
    longest = cell.prompt_tokens + cell.output_tokens
    if cell.batch > min(facts.max_sequences, facts.step_tokens):
        return False
    return longest <= facts.context and cell.batch * longest <= KV_ROOM * facts.kv_tokens


async def profile(
    engine: Engine,
    identity: EngineIdentity,
    *,
    name: str,
    rounds: int = 3,
    tell: Tell = lambda _text, _done, _total: None,
) -> Profile:
    """Measure, fit, check and describe a running, idle engine of this process. See `measure`."""
    _, step_tokens = await engine.set_batch_limits(None, None)
    return await measure(EngineSource(engine), Facts.of(name, identity, step_tokens), rounds=rounds, tell=tell)


async def measure(
    source: Source, facts: Facts, *, rounds: int = 3, tell: Tell = lambda _text, _done, _total: None
) -> Profile:
    """Measure, fit, check and describe a source.

    Args:
        source: an engine or a cluster, idle.
        facts: of the engine.
        rounds: number of times that the grid is driven, each time in another order. A disturbance of the machine then
            falls on several cells, and of each cell the median counts.
        tell: takes the current work, the number of cells done, and the number of all cells.

    Raises:
        EngineError: a sequence failed, or nothing can be fitted.
    """
    began = time.monotonic()
    fitted, held = grid(facts)
    if not fitted or not held:
        raise EngineError("the engine has no room for any cell of the grid")
    driver = _Driver(source, facts)
    await driver.run(GridCell(*WARM_UP))
    beside = [batch for batch in BESIDE if batch < facts.max_sequences]
    total, done = rounds * (len(fitted) + len(held) + len(beside)), itertools.count()
    seen: dict[GridCell, list[CellMeasurement]] = {cell: [] for cell in (*fitted, *held)}
    late: list[Late] = []
    rnd = random.Random(1)
    for _ in range(rounds):
        order = [*fitted, *held]
        rnd.shuffle(order)
        for cell in order:
            tell(f"{cell.batch} x ({cell.prompt_tokens} + {cell.output_tokens})", next(done), total)
            seen[cell].append(await driver.run(cell))
        for batch in beside:
            tell(f"late prompts beside {batch}", next(done), total)
            late += await driver.join(batch)
    model, fit_error, overhead_s = _fit([seen[cell] for cell in fitted])
    overhead_s, overhead_steps = _beside(model, overhead_s, late)
    checks = tuple(_check(model, cell, seen[cell]) for cell in held if any(each.steps for each in seen[cell]))
    lengths = [each.prompt_tokens + each.output_tokens for each in (*fitted, *held)]
    return Profile(
        model=facts.model,
        hardware=facts.hardware,
        tensor_parallel=facts.tensor_parallel,
        precision=facts.precision,
        a=model.a,
        b=model.b,
        g=model.g,
        overhead_s=overhead_s,
        overhead_steps=overhead_steps,
        kv_tokens=facts.kv_tokens,
        max_sequences=facts.max_sequences,
        step_tokens=facts.step_tokens,
        context=facts.context,
        samples=sum(len(each.steps) for cell in fitted for each in seen[cell]),
        fit_error=fit_error,
        error=statistics.fmean(abs(each.error) for each in checks) if checks else 1.0,
        checks=checks,
        batches=(min(each.batch for each in fitted), max(each.batch for each in fitted)),
        lengths=(min(lengths), max(lengths)),
        seconds=time.monotonic() - began,
    )


def _fit(cells: Sequence[Sequence[CellMeasurement]]) -> tuple[StepModel, float, float]:
    """Return the model, its error, and the seconds of a first token beyond its step."""
    cells = [cell for cell in cells if any(one.steps for one in cell)]
    if len(cells) < LEAST_CELLS:
        raise EngineError("hardly any sequences ran together; is something else using the replica?")
    prompts_known = any(step.tokens != step.sequences for cell in cells for one in cell for step in one.steps)
    runs = [[one.steps for one in cell] for cell in cells]
    model, error = fit_cells(runs)
    overhead_s = _overhead(model, cells)
    if prompts_known:
        return model, error, overhead_s
    # Clients see decode steps. Of the prompt's step they only see that it ends before the first token. Short prompts
    # show the overhead beside it, long ones the time of prompt tokens.
    for _ in range(FIT_ROUNDS):
        prompts = [
            [
                [StepSample(max(1e-6, statistics.median(one.ttft_s) - overhead_s), one.cell.prompt_tokens, 0)]
                for one in cell
            ]
            for cell in cells
            if cell[0].cell.batch == 1
        ]
        model, error = fit_cells([*runs, *prompts])
        overhead_s = _overhead(model, cells)
    return model, error, overhead_s


def _overhead(model: StepModel, cells: Sequence[Sequence[CellMeasurement]]) -> float:
    """Return the seconds of a lone short prompt's first token beyond its own step."""
    alone = [each for cell in cells for each in cell if each.cell.batch == 1]
    shortest = min((each.cell.prompt_tokens for each in alone), default=0)
    over = [
        ttft - model.predict(shortest, 0)
        for each in alone
        if each.cell.prompt_tokens == shortest
        for ttft in each.ttft_s
    ]
    return max(0.0, statistics.median(over)) if over else 0.0


def _beside(model: StepModel, alone_s: float, late: Sequence[Late]) -> tuple[float, float]:
    """Return the wait before a late prompt's first token, beyond its own step and half of the step that runs when it
    comes.

    The result is in seconds, and in steps where others decode. A machine that has to wake up for a lone prompt takes
    longer than a busy one; real loads meet the busy one.
    """
    over, steps = [], []
    for each in late:
        context = each.beside * each.context
        step = model.predict(each.beside, context)
        over.append(each.ttft_s - model.predict(each.beside + each.tokens, context) - 0.5 * step)
        steps.append((over[-1] - alone_s) / step)
    if not over:
        return alone_s, 0.0
    waited = statistics.median(steps)
    return (alone_s, waited) if waited > 0 else (max(0.0, statistics.median(over)), 0.0)


def _check(model: StepModel, cell: GridCell, found: Sequence[CellMeasurement]) -> CellCheck:
    rounds = [one.steps for one in found if one.steps]
    predicted = [statistics.fmean(model.predict(each.tokens, each.kv_tokens) for each in steps) for steps in rounds]
    measured = [statistics.fmean(each.seconds for each in steps) for steps in rounds]
    return CellCheck(
        cell.batch, cell.prompt_tokens, cell.output_tokens, statistics.median(predicted), statistics.median(measured)
    )


class _Driver:
    def __init__(self, source: Source, facts: Facts) -> None:
        self._source = source
        self._facts = facts
        self._random = random.Random(1)

    async def run(self, cell: GridCell) -> CellMeasurement:
        """Run one cell, from an idle engine to an idle engine.

        If the first sequences end before the last one begins, run the cell again with longer outputs.
        """
        found = await self._run(cell)
        for longer in LONGER:
            again = replace(cell, output_tokens=longer * cell.output_tokens)
            if found.steps or not fits(again, self._facts):
                break
            found = replace(await self._run(again), cell=cell)
        return found

    async def _run(self, cell: GridCell) -> CellMeasurement:
        self._source.take_steps()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                told = await asyncio.gather(
                    *(self._generate(cell.prompt_tokens, cell.output_tokens) for _ in range(cell.batch))
                )
        except TimeoutError as error:
            raise EngineError(f"{counted(cell.batch, 'sequence')} did not end within {TIMEOUT_S:.0f} s") from error
        steps = self._source.take_steps()
        if steps is None:
            steps = steps_seen(told, cell.prompt_tokens)
        return CellMeasurement(cell, steps, [each.ttft_s for each in told])

    async def join(self, batch: int) -> list[Late]:
        """Send prompts one after the other while a batch decodes."""
        prompt, output = BESIDE_LENGTHS
        tasks = [asyncio.create_task(self._generate(prompt, output)) for _ in range(batch)]
        late: list[Late] = []
        try:
            async with asyncio.timeout(TIMEOUT_S):
                # When this prompt has ended, all of the batch decode.
                await self._generate(LATE_PROMPT, LATE_OUTPUT)
                while len(late) < MOST_LATE:
                    # So that the prompt comes at a random moment of a step.
                    await asyncio.sleep(self._random.uniform(0.0, 0.03))
                    told = await self._generate(LATE_PROMPT, LATE_OUTPUT)
                    if any(task.done() for task in tasks):
                        break
                    late.append(Late(LATE_PROMPT, batch, prompt + output / 2, told.ttft_s))
                await asyncio.gather(*tasks)
        except TimeoutError as error:
            raise EngineError(f"{counted(batch, 'sequence')} did not end within {TIMEOUT_S:.0f} s") from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._source.take_steps()
        return late

    async def _generate(self, prompt_tokens: int, output_tokens: int) -> Told:
        # Other tokens each time. Otherwise the prefix cache would answer.
        prompt = [self._random.randint(3, 250) for _ in range(prompt_tokens)]
        return await self._source.generate(prompt, output_tokens)
