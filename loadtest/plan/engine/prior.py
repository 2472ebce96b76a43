"""Step model of an engine without measurements, from data sheets and six coefficients.

The coefficients were fitted once to Llama-3.1-70B in fp8 and fp4 and Qwen3-32B in bf16 on H100, H200 and B200 with vLLM
at tensor parallel sizes 1 to 8 (304 points). The mean error on those points is 5.5 %. Trained without B200 and tested
on it, it is 9.7 %. Trained on 70B and tested on 32B, it is 7.0 %. The time of experts' arithmetic and the constants of
TTFT in `steady` were set on gpt-oss-120b and Llama-3.1-70B on H100. Nothing else is inside the calibration. A profile
replaces the prior.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.control.step_model import Experts, Shape, StepModel
from loadtest.plan.engine.gpus import Gpu
from loadtest.plan.engine.precision import weights_of
from loadtest.plan.engine.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Constants of the prior: factors on the ideal time of each part."""

    weight_read: float = 1.05
    kv_read: float = 0.74
    compute: float = 1.48
    expert_compute: float = 5.0
    """For routed experts: grouped multiplications of few rows each reach a smaller part of the peak."""
    layer_s: float = 68e-6
    all_reduce: float = 1.63
    request_s: float = 28e-6
    """Seconds per sequence in the batch."""


@dataclass(frozen=True, slots=True)
class StepPrior:
    """Step model of one (model, accelerator, parallelism, precision). Unlike a fitted model it has a cost per sequence
    beside the cost per token.
    """

    steps: StepModel
    request_s: float
    """Seconds per sequence in the step, beside its tokens."""

    def for_shape(self, shape: Shape) -> StepModel:
        """Return the step model for such requests. The cost of a sequence is spread over the tokens that it brings, so
        that steady batches take as long.
        """
        steps = self.steps
        return StepModel(steps.a, steps.b + self.request_s / shape.mix.tokens, steps.g, steps.m, steps.experts)

    def step(self, sequences: float, tokens: float, kv_tokens: float) -> float:
        """Return the seconds that a step takes."""
        return self.steps.predict(tokens, kv_tokens) + self.request_s * sequences


def prior(
    shape: ModelShape,
    gpu: Gpu,
    tensor_parallel: int,
    precision: str,
    *,
    kv_element_bytes: float = 2.0,
    coefficients: Coefficients | None = None,
) -> StepPrior:
    """Predict an engine's steps.

    Raises:
        SettingsError: the precision is unknown.
    """
    c = coefficients or Coefficients()
    weights = weights_of(shape, precision, has_fp4=gpu.fp4 > gpu.fp8)
    bandwidth = tensor_parallel * gpu.bandwidth
    always = weights.total_bytes - weights.expert_bytes - weights.embedding_bytes
    a = c.weight_read * always / bandwidth + c.layer_s * shape.layers
    routed = shape.active_expert_parameters
    work = c.compute * (shape.active_parameters - routed) + c.expert_compute * routed
    compute = 2 * work / (tensor_parallel * gpu.flops(weights.arithmetic))
    # A ring moves every byte almost twice. Each layer reduces after attention and after the feed-forward part.
    reduced = 2 * shape.layers * 2 * (1 - 1 / tensor_parallel) * 2 * shape.hidden / gpu.link
    b = compute + c.all_reduce * reduced
    g = c.kv_read * shape.kv_bytes_per_rank(tensor_parallel, kv_element_bytes) / gpu.bandwidth
    m, experts = 0.0, None
    if shape.experts is not None:
        m = c.weight_read * weights.expert_bytes / bandwidth
        experts = Experts(shape.experts.total, shape.experts.active)
    return StepPrior(StepModel(a, b, g, m, experts), c.request_s)
