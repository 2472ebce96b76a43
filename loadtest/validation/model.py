"""Model of a recorded engine: its steps and its first tokens, as the planner expects them and as a fit finds them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from cluster.control.step_model import Shape, StepModel
from cluster.errors import SettingsError
from cluster.settings import SimSettings
from loadtest.plan.engine.architectures import find_shape
from loadtest.plan.engine.gpus import find_gpu, load_gpu
from loadtest.plan.engine.precision import canonical
from loadtest.plan.engine.prior import prior
from loadtest.plan.engine.shapes import ModelShape
from loadtest.plan.engine.steps import StepPrior
from loadtest.simulate.engine.steps import ExpertTimes, StepTimes
from loadtest.validation.recorded import RecordedRun

_FEW = 8
"""Tokens of a small step."""
_TYPICAL = StepModel(0.015, 80e-6, 0.08e-6)
"""Engine of about eight billion parameters on one accelerator."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Times of an engine."""

    steps: StepModel
    overhead_s: float = 0.0
    """Seconds from a request's arrival to its first token beside the steps."""
    overhead_steps: float = 0.0
    """Steps that a prompt waits for beside the rest of the one that runs: those prepared in advance."""

    @property
    def times(self) -> StepTimes:
        """Step times for the simulated engine."""
        s = self.steps
        return ExpertTimes(s.a, s.b, s.g, s.m, s.experts) if s.experts and s.m else StepTimes(s.a, s.b, s.g)

    @property
    def values(self) -> tuple[float, ...]:
        """The constants that a fit moves, in its order. The time to read all experts is last, where there are any."""
        s = self.steps
        own = (s.a, s.b, s.g, self.overhead_s, self.overhead_steps)
        return (*own, s.m) if s.experts else own

    def with_values(self, values: tuple[float, ...]) -> EngineModel:
        """Return the model with other constants."""
        a, b, g, overhead_s, overhead_steps, *m = values
        return EngineModel(replace(self.steps, a=a, b=b, g=g, m=m[0] if m else 0.0), overhead_s, overhead_steps)

    def scaled(self, other: EngineModel, by: EngineModel) -> EngineModel:
        """Return the model times what `other` found of `by`, its own expectation, constant by constant."""
        m = other.steps.m / by.steps.m if by.steps.m else 1.0
        ratios = [found / was if was else 1.0 for found, was in zip(other.values[:5], by.values[:5], strict=True)]
        own = self.values
        scaled = [ratio * value for ratio, value in zip(ratios, own[:5], strict=True)]
        return self.with_values((*scaled, *(m * each for each in own[5:])))


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of a run's engine without looking at its times."""

    model: EngineModel
    shape: ModelShape | None
    gpu: str
    precision: str
    lanes: int
    """Ranks simulated beside each other, each with its own batch."""
    merged: int
    """Ranks in lock-step, simulated as one engine with the limits of all."""
    why: str
    """Where the expectation comes from, in words."""

    @property
    def known(self) -> bool:
        """Whether it is the planner's expectation of this engine."""
        return self.shape is not None and bool(self.gpu)

    def limits(self, engine: SimSettings) -> SimSettings:
        """Return the limits of one simulated engine by those of a rank.

        Raises:
            SettingsError: all ranks together are more than an engine can have.
        """
        if self.merged == 1:
            return engine
        if self.merged * engine.max_num_seqs > _MOST_SEQUENCES:
            raise SettingsError(
                f"data_parallel_size of ranks in lock-step must be at most {_MOST_SEQUENCES // engine.max_num_seqs} "
                f"with max_num_seqs = {engine.max_num_seqs}, got {self.merged}"
            )
        return engine.model_copy(
            update={
                name: self.merged * getattr(engine, name)
                for name in ("max_num_seqs", "max_num_batched_tokens", "kv_tokens")
            }
        )

    def same_engine(self, other: Expected) -> bool:
        """Return whether both are the same model on the same accelerators."""
        own, its = (
            (each.shape.name if each.shape else "", each.gpu, each.precision, each.lanes, each.merged)
            for each in (self, other)
        )
        return own == its


_MOST_SEQUENCES = 4096


def expect(run: RecordedRun, gpu: str = "") -> Expected:
    """Say what the planner expects of a run's engine. `gpu` is the accelerator where the run does not tell it.

    Raises:
        SettingsError: `gpu` is unknown, or the run tells another one.
    """
    shape, ranks = find_shape(run.model) if run.model else None, run.ranks
    told, card = find_gpu(run.gpu) if run.gpu else None, load_gpu(gpu) if gpu else None
    if told is not None and card is not None and told.name != card.name:
        raise SettingsError(f"gpu has no effect: the run tells {run.gpu}, got {gpu}")
    card = told or card
    routed = shape is not None and shape.experts is not None
    merged = ranks.data_parallel if ranks.expert_parallel or routed else 1
    lanes = ranks.data_parallel // merged
    precision = _precision(run, shape)
    if shape is None or card is None:
        lacks = "accelerator" if shape else "model" if card else "model and accelerator"
        hint = "; say it with --gpu" if shape else ""
        why = f"a typical engine, because the {lacks} of the run is not known{hint}"
        return Expected(EngineModel(_TYPICAL), shape, "", precision, lanes, merged, why)
    found = prior(shape, card, ranks.tensor_parallel, precision, groups=merged)
    steps = _line(found, _mean(run), run.engine.max_num_batched_tokens)
    if merged > 1:
        # The prior's steps are those of one rank with its part of the tokens.
        steps = replace(steps, b=steps.b / merged, g=steps.g / merged)
    first = found.first
    model = EngineModel(steps, first.overhead_s, max(0.0, first.steps - 0.5))
    gpus = ranks.tensor_parallel * ranks.data_parallel
    why = f"the planner's expectation of {shape.name} in {precision} on {gpus} x {card.name}"
    return Expected(model, shape, card.name, precision, lanes, merged, why)


def _line(found: StepPrior, shape: Shape, step_tokens: int) -> StepModel:
    """Return the line through a step of few tokens and a full one. Between them arithmetic hides behind reads; a
    recorded run has many full steps.
    """
    plain = found.for_shape(shape)
    roofline = found.roofline
    if roofline is None:
        return plain
    few, many = _FEW, max(2 * _FEW, step_tokens)
    line = (roofline.dense_s(many) - roofline.dense_s(few)) / (many - few)
    start = roofline.dense_s(few) - line * few
    mix = shape.mix
    # Prompts attend to themselves once in `output_tokens` steps.
    attended = found.attention_s * shape.prompt_tokens**2 / 2 / max(1.0, shape.output_tokens)
    beside = (found.request_s + attended) / mix.tokens
    grown = max(0.0, roofline.experts_s(many) - plain.m) / many if roofline.experts else 0.0
    s = found.steps
    return StepModel(s.a + start, s.b + line + beside + grown, s.g, plain.m, plain.experts)


def _precision(run: RecordedRun, shape: ModelShape | None) -> str:
    native = shape.native if shape else "bf16"
    try:
        return canonical(run.precision) if run.precision else native
    except SettingsError:
        # Names of methods, such as compressed-tensors, that say less than the checkpoint.
        return native


def _mean(run: RecordedRun) -> Shape:
    return Shape(
        statistics.fmean(request.prompt_tokens for request in run.trace),
        statistics.fmean(request.output_tokens for request in run.trace),
    )
