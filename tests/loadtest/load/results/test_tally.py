"""Figures that add up: over seconds, kinds and processes, in any order."""

from __future__ import annotations

import json
import math
import random

import pytest

from loadtest.load.driver.frames import Unframer, frame
from loadtest.load.results.histogram import GROWTH, Histogram
from loadtest.load.results.record import LAG_BOUND_S, RunRecord
from loadtest.load.results.tally import Tally, Window


def values(count: int, seed: int = 1) -> list[float]:
    rnd = random.Random(seed)
    return [rnd.lognormvariate(-3, 1) for _ in range(count)]


def counted(numbers: list[float]) -> Histogram:
    made = Histogram()
    for number in numbers:
        made.add(number)
    return made


@pytest.mark.parametrize("percent", [1, 50, 95, 99, 99.9, 100])
def test_a_percentile_is_off_by_at_most_half_a_bucket(percent: float) -> None:
    numbers = sorted(values(5_000))
    exact = numbers[math.ceil(len(numbers) * percent / 100) - 1]
    assert pytest.approx(exact, rel=GROWTH**0.5 - 1 + 1e-9) == counted(numbers).percentile(percent)


def test_parts_merged_in_any_order_are_the_whole() -> None:
    numbers = values(3_000)
    whole = counted(numbers)
    parts = [counted(numbers[start::7]) for start in range(7)]
    random.Random(2).shuffle(parts)
    made = Histogram()
    for part in parts:
        made.merge(Histogram.from_wire(part.to_wire()))
    assert whole.buckets == made.buckets
    assert pytest.approx(whole.total) == made.total
    assert (whole.count, whole.largest) == (made.count, made.largest)


def test_an_empty_histogram_knows_nothing_and_zero_is_a_value() -> None:
    assert Histogram().percentile(99) is None
    assert Histogram().mean is None
    zero = counted([0.0])
    assert (1, 0.0) == (zero.count, zero.percentile(99))


def window(second: int, kind: str, ttft: list[float], good: int, errors: int = 0) -> Window:
    made = Window(second, running=3, last_s=second + 0.25)
    tally = made.of(kind)
    tally.ended = len(ttft) + errors
    tally.completed, tally.good, tally.output_tokens = len(ttft), good, 10 * len(ttft)
    if errors:
        tally.errors["QUEUE_FULL"] = errors
    for each in ttft:
        tally.times["ttft"].add(each)
        made.generator.lag.add(0.001)
    return made


def test_a_record_of_two_workers_is_that_of_one_process_with_all_requests() -> None:
    numbers = values(400)
    alone, two = RunRecord(), RunRecord()
    for second in range(4):
        part = numbers[100 * second : 100 * second + 100]
        alone.add(window(second, "chat", part, good=90, errors=2))
        for worker in (part[:30], part[30:]):
            share = window(second, "chat", worker, good=45, errors=1)
            two.add(Window.from_wire(json.loads(json.dumps(share.to_wire()), object_hook=numeric_keys)))
    assert alone.total().as_json(4.0)["ttft_s"] == pytest.approx(two.total().as_json(4.0)["ttft_s"])
    one, other = alone.as_json(4.0), two.as_json(4.0)
    assert 3.25 == alone.last_s == two.last_s
    for name in ("requests", "completed", "good", "goodput", "rps", "tokens_per_s", "errors"):
        assert one[name] == other[name]
    assert [102] * 4 == [each["ended"] for each in other["timeline"]]
    assert [6] * 4 == [each["running"] for each in other["timeline"]]
    assert {"QUEUE_FULL": 8} == other["errors"]


def numeric_keys(table: dict[str, object]) -> dict[object, object]:
    return {int(key) if key.isdecimal() else key: value for key, value in table.items()}


def test_a_failed_request_is_a_miss() -> None:
    tally = Tally(ended=4, completed=3, good=3)
    assert 0.75 == tally.goodput
    assert Tally().goodput is None


def test_a_late_generator_is_named() -> None:
    record = RunRecord()
    record.add(window(0, "chat", [0.1] * 50, good=50))
    assert [] == record.bottleneck()
    late = Window(1)
    for _ in range(50):
        late.generator.lag.add(4 * LAG_BOUND_S)
    record.add(late)
    (why,) = record.bottleneck()
    assert "sending was" in why
    assert record.as_json(1.0)["generator"]["bottleneck"] is True


def test_messages_arrive_whole_however_the_bytes_are_cut() -> None:
    sent = [("window", {"second": 1, "values": [1.5, 2]}), ("ended", []), ("hello", None)]
    data = b"".join(frame(kind, body) for kind, body in sent)
    for size in (1, 3, 7, len(data)):
        messages = Unframer()
        found = [each for at in range(0, len(data), size) for each in messages.feed(data[at : at + size])]
        assert sent == found


def test_of_two_medians_the_upper_one_is_the_one_that_locust_shows() -> None:
    six = counted([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert (pytest.approx(0.3, rel=0.01), pytest.approx(0.4, rel=0.01)) == (
        six.percentile(50),
        six.percentile(50, upper=True),
    )
    assert six.percentile(100) == six.percentile(100, upper=True)


def test_a_distribution_rises_to_one_and_agrees_with_the_percentiles() -> None:
    many = counted([number / 1000 for number in range(1, 2001)])
    curve = many.curve(50)
    assert 35 < len(curve) < 60
    assert curve == sorted(curve)
    assert 1.0 == curve[-1][1]
    for value, part in curve[1:]:
        assert pytest.approx(value, rel=0.03) == many.percentile(100 * part)
    assert [] == Histogram().curve()
