"""Recorded loads: when requests came, how long they were, and which prompts begin alike."""

from loadtest.traces.read import FORMATS, open_trace, read_trace
from loadtest.traces.request import TraceRequest
from loadtest.traces.transform import scale_rate, with_class

__all__ = ["FORMATS", "TraceRequest", "open_trace", "read_trace", "scale_rate", "with_class"]
