"""The arithmetic of `make bench-tokens`; the paths themselves need the real engine."""

from __future__ import annotations

import pytest

from loadtest.benchmarks.tokens.__main__ import order
from loadtest.benchmarks.tokens.figures import (
    COMPARISONS,
    LETTERS,
    MODES,
    PATHS,
    RIVALS,
    Phase,
    fields_of,
    interval,
    pooled,
)
from loadtest.benchmarks.tokens.load import LoadResult, StreamTimes


def phase(tokens: int, seconds: float, cpu_s: float, ttft_s: float = 0.01, messages: int = 0) -> Phase:
    """Make a phase of one stream whose tokens come evenly."""
    stream = StreamTimes(1.0, 1.0 + ttft_s, 1.0 + seconds, tokens, messages or tokens)
    return Phase(LoadResult(seconds, [stream]), cpu_s, control_cpu_s=0.1, beside_cpu_s=0.2)


def test_phases_of_different_length_are_pooled_by_their_work() -> None:
    fields = pooled([phase(100, 1.0, 0.01), phase(300, 1.0, 0.01)])
    assert (200.0, 50.0) == (fields["tokens_per_s"], fields["cpu_us_per_token"])
    assert (400, 400) == (fields["tokens"], fields["messages"])
    assert (10.0, 20.0) == (fields["control_cpu_percent"], fields["beside_cpu_percent"])


def test_the_ratios_are_medians_of_rounds_so_a_round_of_a_slow_machine_does_not_count() -> None:
    even = {
        "inprocess": phase(100, 1.0, 0.01),
        "vllm_http": phase(100, 1.0, 0.04),
        "penstock": phase(120, 1.0, 0.024),
        "penstock_http": phase(120, 1.0, 0.012),
        "penstock_parsed": phase(120, 1.0, 0.018),
    }
    broken = {**even, "penstock": phase(10, 1.0, 0.5, ttft_s=0.9)}
    fields = fields_of({mode: [even, broken, even] for mode in MODES})

    assert pytest.approx(0.5) == fields["ratios"]["saturated_cpu_c_over_b"]
    assert pytest.approx(0.25) == fields["ratios"]["saturated_cpu_d_over_b"]
    assert pytest.approx(1.5) == fields["ratios"]["saturated_cpu_e_over_d"]
    assert pytest.approx(1.2) == fields["ratios"]["saturated_tokens_c_over_b"]
    assert pytest.approx(0.0) == fields["added_ttft_ms"]
    assert [0.0, 890.0, 0.0] == [round(each) for each in fields["rounds"]["added_ttft_ms"]]
    assert set(PATHS) == set(fields["modes"]["paced"])


def test_one_path_alone_has_no_ratios() -> None:
    fields = fields_of({mode: [{"penstock": phase(2, 1.0, 1.0)}] for mode in MODES})
    assert ["modes"] == list(fields)


def test_a_rival_is_compared_with_vllms_server_and_penstock_with_it_over_the_same_protocol() -> None:
    cost = dict(zip((*PATHS, *RIVALS), (1.0, 4.0, 2.0, 3.0, 3.0, 1.0, 0.5, 1.5, 2.0), strict=True))
    round_ = {name: phase(100, 1.0, 0.01 * each) for name, each in cost.items()}
    ratios = fields_of({mode: [round_] for mode in MODES})["ratios"]

    assert pytest.approx(0.25) == ratios["saturated_cpu_f_over_b"]
    assert pytest.approx(3.0) == ratios["saturated_cpu_d_over_f"]
    assert pytest.approx(4.0) == ratios["paced_cpu_c_over_g"]
    assert pytest.approx(2.0) == ratios["paced_cpu_d_over_h"]
    assert "saturated_cpu_d_over_g" not in ratios


def test_a_rival_that_can_not_be_had_is_compared_with_nothing() -> None:
    there = {name: phase(100, 1.0, 0.01) for name in LETTERS if name not in {"smg_zmq", "smg_servicer"}}
    ratios = fields_of({mode: [there] for mode in MODES})["ratios"]
    assert "paced_cpu_f_over_b" in ratios
    assert [] == [name for name in ratios if "_h_" in name or name.endswith(("_h", "_i"))]


def test_every_bar_is_kept_at_its_value_and_missed_beyond_it() -> None:
    for each in COMPARISONS:
        if each.at_most is not None:
            assert each.held(each.at_most)
            assert not each.held(each.at_most + 0.01)
        if each.at_least is not None:
            assert each.held(each.at_least)
            assert not each.held(each.at_least - 0.01)


@pytest.mark.parametrize(("count", "left_out"), [(1, 0), (5, 0), (6, 0), (9, 1), (15, 3), (27, 7)])
def test_the_interval_of_a_median_leaves_out_what_one_in_twenty_would(count: int, left_out: int) -> None:
    """The ranks are those of the binomial distribution's table."""
    values = [float(n) for n in reversed(range(count))]
    assert (left_out, count - 1 - left_out) == interval(values)


def test_each_path_begins_a_round() -> None:
    assert ["abc", "bca", "cab", "abc"] == ["".join(order("abc", number)) for number in range(4)]
