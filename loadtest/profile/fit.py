"""The fit of a step model to the steps of a profile: least squares of relative errors, outliers bounded."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.control.least_squares import solve_with_floors
from cluster.control.step_model import StepModel, StepSample
from cluster.errors import EngineError

_ROUNDS = 8
_HUBER = 1.5
_SCALES = (1e-3, 1e-5, 1e-8)
BLOCK = 8
LEAST_BLOCKS = 12


@dataclass(frozen=True, slots=True)
class Block:
    """Mean of some consecutive steps of one kind.

    The model is linear, so it holds for means too. A late reading of the clock makes one step longer and the next one
    shorter, which does not change a mean.
    """

    seconds: float
    tokens: float
    kv_tokens: float
    steps: int


def blocks_of(steps: Sequence[StepSample]) -> list[Block]:
    """Average the steps of one run: steps of pure decoding in pieces, steps with prompts together."""
    decodes = [step for step in steps if step.tokens == step.sequences]
    prompts = [step for step in steps if step.tokens != step.sequences]
    pieces = [decodes[at : at + BLOCK] for at in range(0, len(decodes), BLOCK)]
    return [_mean(piece) for piece in (*pieces, prompts) if piece]


def _mean(steps: Sequence[StepSample]) -> Block:
    return Block(
        statistics.fmean(step.seconds for step in steps),
        statistics.fmean(step.tokens for step in steps),
        statistics.fmean(step.kv_tokens for step in steps),
        len(steps),
    )


def fit_cells(cells: Iterable[Sequence[Sequence[StepSample]]]) -> tuple[StepModel, float]:
    """Fit a, b and g to cells that were driven several times. Of each piece of a run the median of its repeats counts.
    Return the model and its median relative error.

    Raises:
        EngineError: there are too few steps.
    """
    return _fit([found for cell in cells if (found := median_of([blocks_of(steps) for steps in cell]))])


def median_of(repeats: Sequence[Sequence[Block]]) -> list[Block]:
    """Return the median of each piece over repeats of a run; all pieces if the repeats differ in their number."""
    known = [each for each in repeats if each]
    if len({len(each) for each in known}) != 1:
        return [block for each in known for block in each]
    return [
        Block(
            statistics.median(each.seconds for each in same),
            statistics.median(each.tokens for each in same),
            statistics.median(each.kv_tokens for each in same),
            sum(each.steps for each in same),
        )
        for same in zip(*known, strict=True)
    ]


def _fit(by_run: Sequence[Sequence[Block]]) -> tuple[StepModel, float]:
    blocks = [block for found in by_run for block in found]
    if len(blocks) < LEAST_BLOCKS:
        raise EngineError(f"a profile needs at least {LEAST_BLOCKS * BLOCK} steps; the engine reported too few")
    # After a late clock reading, a block seems to take no time. Errors are therefore relative to the expected time.
    units = [_usual(found, block) for found in by_run for block in found]
    weights = [1.0] * len(blocks)
    model, errors = StepModel(0, 0, 0), [0.0]
    for _ in range(_ROUNDS):
        model = _solve(blocks, weights, units)
        expected = [model.predict(block.tokens, block.kv_tokens) for block in blocks]
        units = [max(each, 0.25 * unit, 1e-9) for each, unit in zip(expected, units, strict=True)]
        errors = [(block.seconds - e) / u for block, e, u in zip(blocks, expected, units, strict=True)]
        deviation = max(0.02, 1.4826 * statistics.median(abs(each) for each in errors))
        # Other work on the machine delays some steps. They count, but no more than the others.
        weights = [min(1.0, _HUBER * deviation / abs(each)) if each else 1.0 for each in errors]
    return model, statistics.median(abs(each) for each in errors)


def _usual(run: Sequence[Block], block: Block) -> float:
    return max(block.seconds, statistics.median(each.seconds for each in run))


def _solve(blocks: Sequence[Block], weights: Sequence[float], units: Sequence[float]) -> StepModel:
    gram, right = [[0.0] * 3 for _ in range(3)], [0.0] * 3
    for block, weight, unit in zip(blocks, weights, units, strict=True):
        values = zip(_SCALES, (1.0, block.tokens, block.kv_tokens), strict=True)
        row = [scale * value / unit for scale, value in values]
        for i in range(3):
            right[i] += weight * row[i] * block.seconds / unit
            for j in range(3):
                gram[i][j] += weight * row[i] * row[j]
    for i in range(3):
        gram[i][i] *= 1 + 1e-9
    found = solve_with_floors(gram, right, [0.0, 0.0, 0.0])
    if found is None:
        raise EngineError("the engine's steps do not tell the step model's terms apart")
    a, b, g = (value * scale for value, scale in zip(found, _SCALES, strict=True))
    return StepModel(a, b, g)
