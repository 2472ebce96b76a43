"""Bounds that a run must hold."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import SettingsError
from loadtest.load.results.asserts import check_kinds, failures, parse_bounds
from loadtest.load.results.record import RunRecord
from loadtest.load.results.tally import Window


def figures() -> dict[str, Any]:
    record = RunRecord()
    window = Window(0)
    tally = window.of("chat")
    tally.ended, tally.completed, tally.good = 100, 99, 98
    tally.errors["QUEUE_FULL"] = 1
    for number in range(1, 101):
        tally.times["ttft"].add(number / 1000)
        window.generator.lag.add(0.002)
    record.add(window)
    return record.as_json(10.0)


@pytest.mark.parametrize(
    "text",
    [
        "ttft_p99<500ms,goodput>0.97",
        "ttft_p50 <= 51ms",
        "ttft_max<0.11s, ttft_mean>50000us",
        "goodput>=98%,error_rate<2%",
        "rps>9.8,requests>=100",
        "chat.ttft_p95<96ms",
        "generator_lag_p99<3ms",
    ],
)
def test_bounds_that_hold(text: str) -> None:
    assert [] == failures(parse_bounds(text), figures())


@pytest.mark.parametrize("per_mille", [7, 29, 571, 953, 994, 999])
def test_a_bound_in_percent_is_held_by_what_is_just_as_much(per_mille: int) -> None:
    window = Window(0)
    tally = window.of("chat")
    tally.ended, tally.completed, tally.good = 1000, per_mille, per_mille
    record = RunRecord()
    record.add(window)
    percent = f"{per_mille // 10}.{per_mille % 10}"

    bounds = parse_bounds(f"goodput>={percent}%,goodput<={percent}%")

    assert [] == failures(bounds, record.as_json(10.0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft_p99<50ms", "ttft_p99<50ms: it was 9"),
        ("goodput>0.99", "goodput>0.99: it was 0.98"),
        ("itl_p99<1s", "nothing was measured"),
        ("rag.goodput>0.5", "no requests of kind rag"),
    ],
)
def test_a_broken_bound_says_what_was_found(text: str, said: str) -> None:
    (sentence,) = failures(parse_bounds(text), figures())
    assert said in sentence


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one bound"),
        ("ttft_p99=5ms", "must be METRIC"),
        ("ttft_p99<500", "needs a unit, one of us, ms, s, min; got ''"),
        ("ttft_p98<5ms", "ttft has the figures mean, p50"),
        ("latency<5ms", "unknown metric 'latency'"),
        ("goodput>99", "from 0 to 1; got 99"),
        ("rps>5ms", "rps takes no unit 'ms'"),
        ("goodput>0.9.9", "is no number"),
        ("chat.generator_lag_p99<5ms", "not kept by kind"),
    ],
)
def test_a_bound_that_cannot_be_understood_says_why(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_bounds(text)
    assert said in str(caught.value)


def test_a_kind_that_is_not_sent_is_named_before_the_run() -> None:
    bounds = parse_bounds("ttft_p99<1s,chat.goodput>0.9,cha.goodput>0.9")
    check_kinds(bounds[:2], ["chat", "rag"])
    with pytest.raises(SettingsError, match=r"'cha.goodput>0.9': kind must be one of those sent, chat, rag, got 'cha'"):
        check_kinds(bounds, ["chat", "rag"])
