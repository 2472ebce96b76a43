"""Step model of an engine without measurements, from data sheets and coefficients.

The coefficients were fitted once to 546 points of vLLM that others measured: Llama-3.1-70B in fp8 and fp4, Qwen3-32B in
bf16, gpt-oss-120b in mxfp4, MiniMax-M2.5 in fp8 and fp4 and Kimi-K2.5 in int4 and fp4, on H100, H200, B200 and B300 at
tensor parallel sizes 1 to 8. Points with a queue are left out. Times per token and to the first one are fitted
together, with the data type of the KV cache and the lengths of each run. Every model counts as the square root of its
points.
`make bench-plan` prints the errors, and those of fits without one model or one accelerator. A profile or measured
points replace the prior.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.control.step_model import Experts, StepModel
from loadtest.plan.engine.gpus import Gpu
from loadtest.plan.engine.precision import Weights, weights_of
from loadtest.plan.engine.shapes import ModelShape
from loadtest.plan.engine.steps import FirstToken, Roofline, StepPrior

__all__ = ["Coefficients", "FirstToken", "FirstTokens", "StepPrior", "prior"]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Constants of the prior: factors on the ideal time of each part, and seconds."""

    weight_read: float = 1.16
    fp4_read: float = 1.33
    """Further factor on dense weights in fp4: activations are quantised on the way."""
    expert_read: float = 1.0
    int4_read: float = 1.56
    """Factor on experts in int4 beside `weight_read`; Marlin kernels widen what they read."""
    mxfp4_read: float = 0.438
    """The same for mxfp4. Where it is below 1 the time is in `widening`."""
    kv_read: float = 1.29
    kv_blackwell: float = 0.888
    """Further factor on the KV cache on Blackwell."""
    kv_latent: float = 0.824
    """Further factor on latent vectors."""
    kv_multi_head: float = 1.4
    """Further factor where every head has its own keys and values. Runs of Llama-2-7B read 1.4 to 2.3 times the ideal;
    they are not among the points of the fit."""
    compute: float = 1.46
    compute_blackwell: float = 1.9
    experts_fp8: float = 4.0
    """Factor on the arithmetic of routed experts before the correction for narrow ones: Hopper, fp8 and bf16."""
    experts_mxfp4: float = 3.23
    experts_int4: float = 1.98
    experts_fp8_blackwell: float = 4.47
    experts_fp4_blackwell: float = 2.04
    experts_mxfp4_blackwell: float = 2.33
    narrow: float = 130
    """Width of an expert on one rank at which grouped multiplications take twice as long per operation."""
    rows: float = 17.0
    """Rows that an expert computes at least."""
    widening: float = 53.6
    """The same where weights are widened before they are multiplied."""
    widening_blackwell: float = 1.9
    """Further factor on widened weights and their arithmetic on Blackwell. Ordinary units widen them, which grew by a
    fifth since Hopper; the matrix units, whose new instructions Marlin does not use, by 2.3. No point of the fit has
    such an engine.
    """
    gathering: float = 0.942
    layer_s: float = 5.92e-5
    layer_blackwell: float = 0.92
    moe_layer_s: float = 2.53e-5
    latent_layer_s: float = 1.42e-5
    split_layer_s: float = 1.23e-5
    """Seconds per layer where it is split over several GPUs, for two reductions."""
    all_reduce: float = 1.76
    routing: float = 5.5
    """Passes over the rows of a token's experts in memory: they are gathered, written between the two multiplications
    and added up."""
    attention: float = 1.44
    """Factor on the attention of prompts at the peak of bf16."""
    request_s: float = 3.02e-5
    """Seconds per sequence in the batch."""
    sharpness: float = 3.46


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Constants of the time to a first token.

    Those of dense models on Hopper are chosen so that engines of two versions err alike; the others are fitted.
    """

    dense: FirstToken = field(default_factory=lambda: FirstToken(0.025, 1.6, 1.15))
    moe: FirstToken = field(default_factory=lambda: FirstToken(0.0089, 3.9, 1.34))
    dense_blackwell: FirstToken = field(default_factory=lambda: FirstToken(0.049, 1.5, 1.39))
    moe_blackwell: FirstToken = field(default_factory=lambda: FirstToken(0.013, 3.6, 1.59))

    def of(self, shape: ModelShape, gpu: Gpu) -> FirstToken:
        """Return those of a model on an accelerator."""
        if gpu.blackwell:
            return self.moe_blackwell if shape.experts else self.dense_blackwell
        return self.moe if shape.experts else self.dense


def prior(
    shape: ModelShape,
    gpu: Gpu,
    tensor_parallel: int,
    precision: str,
    *,
    kv_element_bytes: float = 2.0,
    coefficients: Coefficients | None = None,
    groups: int = 1,
    first_tokens: FirstTokens | None = None,
) -> StepPrior:
    """Predict an engine's steps.

    Args:
        shape: the architecture.
        gpu: each of its accelerators.
        tensor_parallel: number of accelerators that split each layer.
        precision: of the weights.
        kv_element_bytes: 2, or 1 for an fp8 cache.
        coefficients: constants; None for the fitted ones.
        first_tokens: constants of the time to a first token; None for the fitted ones.
        groups: that compute attention for their own requests and share the experts. The steps are those of one group.

    Raises:
        SettingsError: the precision is unknown.
    """
    c = coefficients or Coefficients()
    weights = weights_of(shape, precision, has_fp4=gpu.fp4 > gpu.fp8)
    floor = _floor_s(shape, gpu, tensor_parallel, c)
    # A ring moves every byte almost twice. Each layer reduces after attention and after the feed-forward part.
    moved = 2 * shape.layers * 2 * (1 - 1 / tensor_parallel) * 2 * shape.hidden
    reduce_s = c.all_reduce * moved / gpu.reduce_bandwidth(tensor_parallel)
    kv_s, window_s = _kv_s(shape, gpu, tensor_parallel, kv_element_bytes, c)
    if groups > 1 and shape.experts is not None:
        # A token's activations go to its experts' accelerators, one byte each, and come back in two.
        targets = min(shape.experts.active, groups)
        sent = 3 * shape.hidden * targets * shape.experts.layers / tensor_parallel
        reduce_s += c.all_reduce * sent / gpu.reduce_bandwidth(min(gpu.domain, tensor_parallel * groups))
    if shape.experts is not None:
        row = 2 * (shape.hidden + shape.experts.width / tensor_parallel)
        reduce_s += c.routing * shape.experts.active * shape.experts.layers * row / gpu.bandwidth
    state_s = shape.recurrent.state_bytes * 2 / tensor_parallel / gpu.bandwidth if shape.recurrent else 0.0
    return StepPrior(
        StepModel(floor, reduce_s, kv_s),
        c.request_s + window_s + state_s,
        _roofline(shape, gpu, tensor_parallel, weights, c, groups),
        _attention_s(shape, gpu, tensor_parallel, c),
        (first_tokens or FirstTokens()).of(shape, gpu),
    )


def _exchange_s(shape: ModelShape, gpu: Gpu, tensor_parallel: int, groups: int, c: Coefficients) -> float:
    """Return the seconds per token of each group that groups on several servers take to share their experts.

    vLLM's default gathers the rows of all groups on every rank, and scatters the sums back, two bytes each. A ring
    crosses between servers over the links of all accelerators at once, so a row crosses once per server and not once
    per expert. Nothing here is fitted: no point has such an engine.
    """
    ranks = tensor_parallel * groups
    if shape.experts is None or ranks <= gpu.domain:
        return 0.0
    crossing = 4 * shape.hidden * shape.experts.layers * (ranks - 1) / (tensor_parallel * gpu.domain)
    return c.all_reduce * crossing / gpu.reduce_bandwidth(ranks)


def _floor_s(shape: ModelShape, gpu: Gpu, tensor_parallel: int, c: Coefficients) -> float:
    """Return the seconds of a step beside reads and arithmetic: launches, routing, reductions of a few bytes."""
    each = c.layer_s * (c.layer_blackwell if gpu.blackwell else 1.0)
    each += c.latent_layer_s if shape.latent else 0.0
    each += c.split_layer_s if tensor_parallel > 1 else 0.0
    return each * shape.layers + (c.moe_layer_s * shape.experts.layers if shape.experts else 0.0)


def _roofline(
    shape: ModelShape, gpu: Gpu, tensor_parallel: int, weights: Weights, c: Coefficients, groups: int = 1
) -> Roofline:
    bandwidth = tensor_parallel * gpu.bandwidth
    always = weights.total_bytes - weights.expert_bytes - weights.embedding_bytes
    read = c.weight_read * (c.fp4_read if weights.precision == "fp4" else 1.0)
    compute = (c.compute_blackwell if gpu.blackwell else c.compute) * gpu.arithmetic
    routed = shape.active_expert_parameters
    narrow_part = (shape.active_parameters - routed - weights.wide) / gpu.flops(weights.arithmetic)
    dense = 2 * (narrow_part + weights.wide / gpu.bf16) / tensor_parallel
    dense *= compute * _widened(gpu, weights)
    if shape.experts is None:
        return Roofline(read * always / bandwidth, dense, sharpness=c.sharpness)
    peak = tensor_parallel * gpu.flops(weights.expert_arithmetic)
    # Groups keep their experts whole, and each has its part of them.
    ranks = 1 if groups > 1 else tensor_parallel
    narrow = 1 + c.narrow * ranks / max(1, shape.experts.width)
    each, from_memory = _expert_factors(gpu, weights, c)
    rows = c.rows
    if _is_widened(gpu, weights):
        slower = c.widening_blackwell if gpu.blackwell else 1.0
        each, rows = each * slower, c.widening * slower
    return Roofline(
        read * always / bandwidth,
        dense,
        c.weight_read * c.expert_read * from_memory * weights.expert_bytes / (bandwidth * groups),
        each * gpu.arithmetic * narrow * 2 * routed / peak,
        rows * 2 * shape.experts.parameters / (peak * groups),
        Experts(shape.experts.total, shape.experts.active),
        c.gathering,
        c.sharpness,
        groups,
        _exchange_s(shape, gpu, tensor_parallel, groups, c) if groups > 1 else 0.0,
    )


def _is_widened(gpu: Gpu, weights: Weights) -> bool:
    """Return whether weights are widened to 16 bits before they are multiplied."""
    return weights.precision == "int4" or (weights.precision in ("fp4", "mxfp4") and gpu.fp4 <= gpu.fp8)


def _widened(gpu: Gpu, weights: Weights) -> float:
    """Return the factor on dense arithmetic for weights that are widened first. On an A100 32k prompts of Qwen3-14B and
    32B took 1.18 times as long in fp8 as in bf16, and 1.05 times as long in int4.
    """
    if weights.arithmetic != "fp8":
        return 1.05 if weights.precision == "int4" else 1.0
    return 1.18 if gpu.fp8 <= gpu.bf16 else 1.0


def _expert_factors(gpu: Gpu, weights: Weights, c: Coefficients) -> tuple[float, float]:
    """Return the factors on the arithmetic of experts and on their reads."""
    precision = weights.precision
    if precision == "int4":
        return c.experts_int4, c.int4_read
    if precision == "mxfp4":
        return (c.experts_mxfp4_blackwell if gpu.blackwell else c.experts_mxfp4), c.mxfp4_read
    if precision == "fp4" and gpu.blackwell:
        return c.experts_fp4_blackwell, 1.0
    return (c.experts_fp8_blackwell if gpu.blackwell else c.experts_fp8), 1.0


def _kv_s(
    shape: ModelShape, gpu: Gpu, tensor_parallel: int, element_bytes: float, c: Coefficients
) -> tuple[float, float]:
    """Return the seconds to read a context token, and those per sequence to read the windows of layers with one."""
    if shape.encoder:
        return 0.0, 0.0
    factor = c.kv_read * (c.kv_blackwell if gpu.blackwell else 1.0)
    if shape.latent is not None:
        factor *= c.kv_latent
    elif shape.kv_heads == shape.heads:
        factor *= c.kv_multi_head
    heads = 1.0 if shape.latent is not None else -(-shape.kv_heads // tensor_parallel) / shape.kv_heads
    each = factor * element_bytes * heads / gpu.bandwidth
    window = shape.window.layers * shape.window.tokens * shape.window_kv_values * each if shape.window else 0.0
    return shape.attending * shape.layer_kv_values * each, window


def _attention_s(shape: ModelShape, gpu: Gpu, tensor_parallel: int, c: Coefficients) -> float:
    """Return the seconds of attention per token of a prompt and token of its context. Keys and values are multiplied in
    16 bits, whatever the precision of the weights.
    """
    latent = shape.latent
    width = latent.plain_dim + latent.rope_dim + latent.value_dim if latent else 2 * shape.head_dim
    # A reader sees what comes after a token too.
    layers = shape.attending * (2 if shape.encoder else 1)
    return c.attention * gpu.arithmetic * 2 * shape.heads * width * layers / (tensor_parallel * gpu.bf16)
