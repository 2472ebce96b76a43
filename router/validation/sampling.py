"""Ranges of sampling parameters that hold for every model."""

from __future__ import annotations

from functools import lru_cache

from cluster.settings import LimitSettings
from penstock.v1 import types_pb2
from penstock.wire.sampling import RECENT, RECENT_BYTES
from router.validation.structured import check_structured
from router.validation.violations import Violations

_RANGES: tuple[tuple[str, float, float, bool], ...] = (
    ("temperature", 0, 2, False),
    ("top_p", 0, 1, True),
    ("min_p", 0, 1, False),
    ("presence_penalty", -2, 2, False),
    ("frequency_penalty", -2, 2, False),
    ("repetition_penalty", 0, 2, True),
)
"""Per field: lower bound, upper bound, and whether the lower bound itself is refused."""


def check_sampling(found: Violations, field: str, wire: types_pb2.SamplingParams, limits: LimitSettings) -> None:
    """Check every range that does not depend on the model."""
    if wire.ByteSize() > RECENT_BYTES or not _fits(wire.SerializeToString(deterministic=True), limits):
        _check(found, field, wire, limits)


@lru_cache(maxsize=RECENT)
def _fits(data: bytes, limits: LimitSettings) -> bool:
    """Return whether serialized parameters are right. Cached, because most requests repeat earlier parameters."""
    found = Violations()
    _check(found, "", types_pb2.SamplingParams.FromString(data), limits)
    return not found


def _check(found: Violations, field: str, wire: types_pb2.SamplingParams, limits: LimitSettings) -> None:
    counts = (
        ("logprobs", 0, limits.max_logprobs, False),
        ("prompt_logprobs", 0, limits.max_logprobs, False),
        ("n", 1, limits.max_choices, False),
    )
    for name, low, high, above_low in (*_RANGES, *counts):
        if wire.HasField(name):  # type: ignore[arg-type]
            found.number(f"{field}.{name}", getattr(wire, name), low, high, above_low=above_low)
    if wire.HasField("max_tokens"):
        if wire.max_tokens == 0:
            found.add(f"{field}.max_tokens", "must be at least 1, got 0")
        elif limits.max_tokens is not None and wire.max_tokens > limits.max_tokens:
            found.add(f"{field}.max_tokens", f"must be at most {limits.max_tokens}, got {wire.max_tokens}")
        elif wire.min_tokens > wire.max_tokens:
            found.add(f"{field}.min_tokens", f"must be at most max_tokens = {wire.max_tokens}, got {wire.min_tokens}")
    _check_stops(found, field, wire, limits)
    _check_biases(found, f"{field}.logit_bias", wire, limits.max_logit_biases)
    if wire.HasField("structured_output"):
        check_structured(found, f"{field}.structured_output", wire.structured_output, limits)
        if wire.ignore_eos:
            # Once the output is complete, engines go on without the constraint.
            found.add(f"{field}.ignore_eos", "must not be set with structured_output, which says where output ends")


def _check_stops(found: Violations, field: str, wire: types_pb2.SamplingParams, limits: LimitSettings) -> None:
    if found.count(f"{field}.stop", len(wire.stop), 0, limits.max_stop_strings):
        for index, text in enumerate(wire.stop):
            found.size(f"{field}.stop[{index}]", text, 1, limits.max_stop_bytes)
    found.count(f"{field}.stop_token_ids", len(wire.stop_token_ids), 0, limits.max_stop_tokens)


def _check_biases(found: Violations, field: str, wire: types_pb2.SamplingParams, most: int) -> None:
    if found.count(field, len(wire.logit_bias), 0, most):
        for token_id, bias in sorted(wire.logit_bias.items()):
            found.number(f"{field}[{token_id}]", bias, -100, 100)
