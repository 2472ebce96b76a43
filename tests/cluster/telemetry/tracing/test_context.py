"""Trace contexts, as W3C Trace Context has them."""

from __future__ import annotations

import pytest

from cluster.telemetry.tracing.context import (
    TraceContext,
    TraceSampling,
    attempt_parent,
    read_trace_parent,
    span_of,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_callers_span_is_read() -> None:
    found = read_trace_parent(f"00-{TRACE}-{SPAN}-01", "vendor=1")
    assert found == TraceContext(TRACE, SPAN, sampled=True, state="vendor=1")
    assert found.trace_parent == f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("03", True), ("ff", True)])
def test_of_the_flags_the_first_bit_counts(flags: str, sampled: bool) -> None:
    found = read_trace_parent(f"00-{TRACE}-{SPAN}-{flags}")
    assert found is not None
    assert found.sampled is sampled


def test_a_later_version_may_have_more_fields() -> None:
    assert read_trace_parent(f"cc-{TRACE}-{SPAN}-01-what-comes") is not None
    assert read_trace_parent(f"00-{TRACE}-{SPAN}-01-more") is None


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        "0" * 10_000,
    ],
)
def test_a_broken_header_starts_a_new_trace(header: str) -> None:
    assert read_trace_parent(header) is None


def test_the_caller_decides_about_its_trace() -> None:
    never, always = TraceSampling(0.0), TraceSampling(1.0)
    for sampled in (False, True):
        parent = TraceContext(TRACE, SPAN, sampled, "vendor=1")
        for sampling in (never, always):
            trace = sampling.begin(parent)
            assert trace.parent == parent
            assert (trace.own.trace_id, trace.own.sampled, trace.own.state) == (TRACE, sampled, "vendor=1")
            assert trace.own.span_id != SPAN


def test_without_a_caller_the_ratio_decides_by_the_trace_id() -> None:
    sampling = TraceSampling(0.25)
    traces = [sampling.begin(None) for _ in range(4_000)]
    assert 0.2 < sum(trace.own.sampled for trace in traces) / len(traces) < 0.3
    assert len({trace.own.trace_id for trace in traces}) == len(traces)
    low, high = "f" * 18 + "3f" + "f" * 12, "0" * 18 + "40" + "0" * 12
    for trace_id, sampled in ((low, True), (high, False)):
        ids = iter([SPAN, trace_id])
        assert TraceSampling(0.25, lambda _size: next(ids)).begin(None).own.sampled is sampled  # noqa: B023


def test_an_attempt_has_the_same_span_in_all_processes() -> None:
    call = f"00-{TRACE}-{SPAN}-01"
    assert attempt_parent(call, "base.1") == f"00-{TRACE}-{span_of('base.1')}-01"
    assert attempt_parent(call, "base.1") != attempt_parent(call, "base.2")
    assert attempt_parent("", "base.1") == ""
