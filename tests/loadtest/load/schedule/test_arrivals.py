"""Arrivals: the rates asked for, the same for the same seed, and as uneven as their name says."""

from __future__ import annotations

import itertools
import statistics

import pytest

from cluster.errors import SettingsError
from loadtest.load.schedule.arrivals import Pattern, arrival_times


def times(text: str, rate: float = 20.0, duration: float = 400.0, seed: str = "1") -> list[float]:
    arrivals = arrival_times(Pattern.parse(text), rate, duration, seed)
    return list(itertools.takewhile(lambda at: at < duration, arrivals))


def dispersion(arrivals: list[float], width: float, duration: float) -> float:
    """Return the variance of counts by their mean: 1 for a Poisson process."""
    counts = [0] * int(duration / width)
    for at in arrivals:
        counts[min(len(counts) - 1, int(at / width))] += 1
    return statistics.variance(counts) / statistics.mean(counts)


@pytest.mark.parametrize("text", ["constant", "poisson", "gamma:cv=2", "diurnal", "mmpp:factor=4,calm_s=4,burst_s=2"])
def test_the_mean_rate_is_the_one_asked_for(text: str) -> None:
    found = statistics.mean(len(times(text, seed=str(seed))) / 400 for seed in range(5))
    assert pytest.approx(20.0, rel=0.06) == found


@pytest.mark.parametrize("text", ["poisson", "gamma", "mmpp", "step", "spike", "diurnal"])
def test_the_same_seed_gives_the_same_times_and_another_one_others(text: str) -> None:
    assert times(text, seed="a") == times(text, seed="a")
    assert times(text, seed="a") != times(text, seed="b")
    assert times(text) == sorted(times(text))


def test_bursts_are_more_uneven_than_poisson_and_poisson_than_even_spacing() -> None:
    assert dispersion(times("constant"), 1.0, 400) < 0.05
    assert pytest.approx(1.0, abs=0.25) == dispersion(times("poisson"), 1.0, 400)
    # A renewal process tends to the square of its coefficient of variation.
    assert pytest.approx(9.0, rel=0.35) == dispersion(times("gamma:cv=3"), 8.0, 400)
    assert dispersion(times("mmpp:factor=8,calm_s=20,burst_s=5"), 5.0, 400) > 5


def test_levels_are_where_the_pattern_says() -> None:
    spike = times("spike:factor=5,at=0.5,for=0.25")
    calm, high = (sum(low <= at < low + 100 for at in spike) for low in (0, 200))
    assert pytest.approx(2000, rel=0.1) == calm
    assert pytest.approx(10_000, rel=0.1) == high
    step = times("step:factor=3,levels=3")
    thirds = [sum(low <= at < low + 400 / 3 for at in step) for low in (0, 400 / 3, 800 / 3)]
    assert [1, 2, 3] == [round(count / thirds[0]) for count in thirds]


def test_levels_below_the_rate_are_sent_as_such() -> None:
    dip = times("spike:factor=0.2,at=0.5,for=0.25")
    calm, low = (sum(begin <= at < begin + 100 for at in dip) for begin in (0, 200))
    assert pytest.approx(2000, rel=0.1) == calm
    assert pytest.approx(400, rel=0.2) == low
    fall = times("step:factor=0.5,levels=2")
    assert pytest.approx(0.5, rel=0.1) == sum(at >= 200 for at in fall) / sum(at < 200 for at in fall)


@pytest.mark.parametrize(
    "text",
    [
        "spike:factor=1.23456789,at=0.123456789,for=0.2",
        "mmpp:factor=123456.789,calm_s=86400001,burst_s=5",
        "step:factor=0.1,levels=3",
        "poisson",
    ],
)
def test_a_pattern_is_read_back_as_it_was_written(text: str) -> None:
    pattern = Pattern.parse(text)
    assert pattern == Pattern.parse(str(pattern))


def test_whole_numbers_of_a_pattern_are_written_short() -> None:
    assert "mmpp:factor=5,calm_s=20,burst_s=5" == str(Pattern.parse("mmpp"))


def test_a_pattern_that_falls_to_nothing_ends() -> None:
    arrivals = list(arrival_times(Pattern.parse("step:factor=0,levels=4"), 20.0, 40.0, "1"))
    assert arrivals
    assert max(arrivals) < 30.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("poison", "must be one of constant, poisson"),
        ("gamma:cw=3", "gamma take cv, got 'cw'"),
        ("poisson:cv=3", "poisson take nothing"),
        ("spike:at=2", "at must be a number from 0 to 1, got '2'"),
        ("step:levels=2.5", "levels must be"),
        ("gamma:cv=nan", "cv must be"),
    ],
)
def test_a_wrong_pattern_is_named(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Pattern.parse(text)


def test_a_pattern_reads_back_what_it_prints() -> None:
    for text in ("poisson", "gamma:cv=3", "spike:factor=2,at=0.1,for=0.3"):
        assert Pattern.parse(text) == Pattern.parse(str(Pattern.parse(text)))
