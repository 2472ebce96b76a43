"""Checks the ranges of sampling parameters that hold for every model."""

from __future__ import annotations

from penstock.v1 import types_pb2

from router.admission.structured import check_structured
from router.admission.violations import Violations

MAX_CHOICES_PER_REQUEST = 16
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_STOP_TOKENS = 64
MAX_LOGPROBS = 20
MAX_BIASES = 1_024

_RANGES: tuple[tuple[str, float, float, bool], ...] = (
    ("temperature", 0, 2, False),
    ("top_p", 0, 1, True),
    ("min_p", 0, 1, False),
    ("presence_penalty", -2, 2, False),
    ("frequency_penalty", -2, 2, False),
    ("repetition_penalty", 0, 2, True),
    ("logprobs", 0, MAX_LOGPROBS, False),
    ("n", 1, MAX_CHOICES_PER_REQUEST, False),
)
"""Field, lower bound, upper bound, and whether the lower bound itself is refused."""


def check_sampling(found: Violations, field: str, wire: types_pb2.SamplingParams) -> None:
    """Check every range that does not depend on the model."""
    for name, low, high, above_low in _RANGES:
        if wire.HasField(name):  # type: ignore[arg-type]
            found.number(f"{field}.{name}", getattr(wire, name), low, high, above_low=above_low)
    if wire.HasField("max_tokens"):
        if wire.max_tokens == 0:
            found.add(f"{field}.max_tokens", "must be at least 1, got 0")
        elif wire.min_tokens > wire.max_tokens:
            found.add(f"{field}.min_tokens", f"must be at most max_tokens = {wire.max_tokens}, got {wire.min_tokens}")
    _check_stops(found, field, wire)
    _check_biases(found, f"{field}.logit_bias", wire)
    if wire.HasField("structured_output"):
        check_structured(found, f"{field}.structured_output", wire.structured_output)


def _check_stops(found: Violations, field: str, wire: types_pb2.SamplingParams) -> None:
    if found.count(f"{field}.stop", len(wire.stop), 0, MAX_STOP_STRINGS):
        for index, text in enumerate(wire.stop):
            found.size(f"{field}.stop[{index}]", text, 1, MAX_STOP_BYTES)
    found.count(f"{field}.stop_token_ids", len(wire.stop_token_ids), 0, MAX_STOP_TOKENS)


def _check_biases(found: Violations, field: str, wire: types_pb2.SamplingParams) -> None:
    if found.count(field, len(wire.logit_bias), 0, MAX_BIASES):
        for token_id, bias in sorted(wire.logit_bias.items()):
            found.number(f"{field}[{token_id}]", bias, -100, 100)
