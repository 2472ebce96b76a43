"""Changes of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cluster.errors import SettingsError
from loadtest.traces.columns import Trace
from loadtest.traces.read import MOST_S
from loadtest.traces.request import TraceRequest
from penstock.models import RequestClass


def scale_rate(trace: Sequence[TraceRequest], factor: float) -> Sequence[TraceRequest]:
    """Let the same requests come `factor` times as fast. `factor` is above 0.

    Raises:
        SettingsError: the trace would exceed the longest allowed length.
    """
    lasts_s = trace[-1].arrival_s / factor if trace else 0.0
    if lasts_s > MOST_S:
        raise SettingsError(
            f"scale-rate must leave the trace {MOST_S:.0f} s (10 years) at most, got {factor:g}, with which it lasts "
            f"{lasts_s:g} s"
        )
    if isinstance(trace, Trace):
        return trace.at_times(lambda arrival_s: arrival_s / factor)
    return [replace(request, arrival_s=request.arrival_s / factor) for request in trace]


def with_class(trace: Sequence[TraceRequest], request_class: RequestClass) -> list[TraceRequest]:
    """Set the class of requests that have none."""
    return [
        request if request.request_class is not None else replace(request, request_class=request_class)
        for request in trace
    ]
