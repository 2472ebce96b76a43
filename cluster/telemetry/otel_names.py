"""Names of OpenTelemetry's metrics and attributes in Prometheus, as OpenTelemetry's own exporters map them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_OTHER = re.compile(r"[^a-zA-Z0-9]+")
_SUFFIXES = {"s": "_seconds", "By": "_bytes"}
"""Endings of names by unit. A unit in braces, such as {token}, has none."""


@dataclass(frozen=True, slots=True)
class OtelName:
    """A metric as OpenTelemetry has it."""

    name: str
    unit: str
    """Unit by UCUM."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Names of attributes by label; other labels keep their name."""


def metric_name(name: str, unit: str) -> str:
    """Return a metric's name in Prometheus."""
    return _OTHER.sub("_", name) + _SUFFIXES.get(unit, "")


def attribute_label(name: str) -> str:
    """Return an attribute's label in Prometheus."""
    return _OTHER.sub("_", name)


def otel_name(name: str) -> OtelName:
    """Return the name in OpenTelemetry of a metric of Prometheus. It is the same one, with the unit that it ends in."""
    unit = next((unit for unit, suffix in _SUFFIXES.items() if name.endswith(suffix)), "")
    return OtelName(name, unit)
