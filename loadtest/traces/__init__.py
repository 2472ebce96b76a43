"""Recorded loads: times and lengths of requests, and prompts with the same beginning."""

from loadtest.traces.columns import kinds_of
from loadtest.traces.read import open_trace, read_trace
from loadtest.traces.request import TraceRequest
from loadtest.traces.sample import trace_file
from loadtest.traces.transform import scale_rate, with_class

__all__ = ["TraceRequest", "kinds_of", "open_trace", "read_trace", "scale_rate", "trace_file", "with_class"]
