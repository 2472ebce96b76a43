"""Settings of public runs that files of their points leave out.

InferenceX publishes the scripts of its runs, `benchmarks/single_node` in SemiAnalysisAI/InferenceX, and when they
changed, in `perf-changelog.yaml`. Prompts and answers have 0.8 to 1 of the length in a run's name. Where the KV cache
is of 8 bits the script says so. Points with a queue agree: 70B on one H200 had 47 sequences under way, which is the
room of 8 bits at these lengths, and on two H100 some 30, which is that of 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cluster.control.step_model import Shape
from loadtest.plan.engine.points import Known, Point, known

LENGTHS = (1024, 8192)
"""Lengths in the names of its runs."""
PART = 0.9
"""Mean length over the one in the name."""
_EIGHT_BITS = {
    ("llama-3.1-70b", "fp8", "h200"), ("llama-3.1-70b", "fp8", "b200"), ("llama-3.1-70b", "fp4", "b200"),
    ("gpt-oss-120b", "mxfp4", "b200"), ("gpt-oss-120b", "fp4", "b200"),
    ("minimax-m2", "fp8", "b200"), ("minimax-m2", "fp4", "b200"),
    ("minimax-m2", "fp8", "b300"), ("minimax-m2", "fp4", "b300"),
    ("kimi-k2.5", "fp4", "b200"), ("kimi-k2.5", "fp4", "b300"),
}  # fmt: skip
"""Model, precision and accelerator of runs with a KV cache of 8 bits."""
_SIXTEEN_BITS_AT_FIRST = {("minimax-m2", "fp8", "b200"): "0.17."}
"""Versions of vLLM with which such runs began, in 16 bits."""
_MODELS = {name for name, _, _ in _EIGHT_BITS}
_CAPPED = {("gpt-oss-120b", "h100"): 512}
"""Bound on the clients in an early script of a model on an accelerator. Files name it as the number of clients, but the
script starts the engine with a batch limit of its own, and sends ten times as many requests. Times to a first token
agree: they are 4.2 to 4.9 times that of an answer, which is the mean wait of ten rounds, or of those within the bound.
"""
_LARGEST_BATCH = 64
"""The largest of those batch limits, which files do not tell."""


def as_run(points: Iterable[Point]) -> list[Point]:
    """Return points with the settings of the runs that they are of, where those are of InferenceX."""
    return [_as_run(point) for point in points]


def _as_run(point: Point) -> Point:
    found, shape, config = known(point.config), point.shape, point.config
    if isinstance(found, str) or found.shape.name not in _MODELS:
        return point
    if not {shape.prompt_tokens, shape.output_tokens} <= set(LENGTHS):
        return point
    capped = point.clients == _CAPPED.get((found.shape.name, found.gpu.name))
    if not point.cache_told and _is_eight_bits(point, found):
        config = replace(config, kv_element_bytes=1.0)
    if config.groups > 1:
        # The scripts start as many groups of one accelerator each as they are given accelerators.
        config = replace(config, tensor_parallel=1, groups=config.tensor_parallel)
    lengths = Shape(PART * shape.prompt_tokens, PART * shape.output_tokens)
    limit = _LARGEST_BATCH if capped else point.batch_limit
    return replace(point, config=config, shape=lengths, batch_limit=limit)


def _is_eight_bits(point: Point, found: Known) -> bool:
    key = (found.shape.name, found.precision, found.gpu.name)
    first = _SIXTEEN_BITS_AT_FIRST.get(key)
    return key in _EIGHT_BITS and not (first and point.version.startswith(first))
