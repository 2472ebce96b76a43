"""The figures of the phases: pooled per path and mode, and compared round by round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.benchmarks.tokens.load import LoadResult

MODES = ("saturated", "paced", "alone")
PATHS = ("inprocess", "vllm_http", "penstock", "penstock_http", "penstock_parsed")
RIVALS = ("vllm_rust", "vllm_rust_grpc", "smg_zmq", "smg_servicer")
"""Paths of other projects' front ends, measured where they can be had."""
LETTERS = dict(zip((*PATHS, *RIVALS), "abcdefghi", strict=True))
"""Letters of the paths in tables and in names of figures."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of one path."""

    result: LoadResult
    cpu_s: float
    """CPU time of the path's serving processes, without engine core and workers."""
    control_cpu_s: float
    """CPU time of processes beside the token path."""
    beside_cpu_s: float
    """CPU time of the other paths, which are up and idle, engines included."""

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of all streams."""
        return self.result.tokens / self.result.seconds

    @property
    def cpu_us_per_token(self) -> float:
        """CPU microseconds of the serving processes per token."""
        return 1e6 * self.cpu_s / self.result.tokens

    @property
    def ttft_ms(self) -> float:
        """Median time to first token."""
        return statistics.median(self.result.ttft_ms())


Rounds = Sequence[Mapping[str, Phase]]
"""Phases of each path, round by round."""


def pooled(phases: Sequence[Phase]) -> dict[str, float]:
    """Return the figures of a path's phases of one mode as one."""
    results = [phase.result for phase in phases]
    tokens, seconds = sum(r.tokens for r in results), sum(r.seconds for r in results)
    return {
        "tokens_per_s": tokens / seconds,
        "ttft_ms_p50": statistics.median(each for r in results for each in r.ttft_ms()),
        "itl_ms_p50": statistics.median(each for r in results for each in r.itl_ms()),
        "cpu_us_per_token": 1e6 * sum(phase.cpu_s for phase in phases) / tokens,
        "messages": sum(r.messages for r in results),
        "tokens": tokens,
        "control_cpu_percent": 100 * sum(phase.control_cpu_s for phase in phases) / seconds,
        "beside_cpu_percent": 100 * sum(phase.beside_cpu_s for phase in phases) / seconds,
    }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Figure of each round, and the bar that its median should keep."""

    mode: str
    name: str
    of: Callable[[Mapping[str, Phase]], float]
    """Function of the phases of a round, by path."""
    at_least: float | None = None
    at_most: float | None = None

    def values(self, rounds: Rounds) -> list[float]:
        """Return the figure of each round."""
        return [self.of(each) for each in rounds]

    def held(self, value: float) -> bool:
        """Return whether a value keeps the bar."""
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)

    @property
    def bar(self) -> str:
        """Bar as text; empty without one."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return f"at most {self.at_most:g}" if self.at_most is not None else ""


def _cpu(one: str, other: str) -> Callable[[Mapping[str, Phase]], float]:
    return lambda phases: phases[one].cpu_us_per_token / phases[other].cpu_us_per_token


def _speed(one: str, other: str) -> Callable[[Mapping[str, Phase]], float]:
    return lambda phases: phases[one].tokens_per_s / phases[other].tokens_per_s


def _tokens_per_message(phases: Mapping[str, Phase]) -> float:
    result = phases["penstock"].result
    return result.tokens / result.messages


def _added_ttft_ms(phases: Mapping[str, Phase]) -> float:
    return phases["penstock"].ttft_ms - phases["inprocess"].ttft_ms


def _ttft(one: str, other: str) -> Callable[[Mapping[str, Phase]], float]:
    return lambda phases: phases[one].ttft_ms / phases[other].ttft_ms


COMPARISONS = (
    Comparison("saturated", "saturated_cpu_c_over_b", _cpu("penstock", "vllm_http"), at_most=0.3),
    Comparison("saturated", "saturated_cpu_d_over_b", _cpu("penstock_http", "vllm_http"), at_most=0.3),
    Comparison("saturated", "saturated_cpu_e_over_d", _cpu("penstock_parsed", "penstock_http"), at_most=1.5),
    Comparison("saturated", "saturated_tokens_c_over_b", _speed("penstock", "vllm_http"), at_least=1.1),
    Comparison("saturated", "saturated_tokens_d_over_b", _speed("penstock_http", "vllm_http")),
    Comparison("saturated", "saturated_tokens_c_over_a", _speed("penstock", "inprocess"), at_least=0.97),
    Comparison("paced", "paced_cpu_c_over_b", _cpu("penstock", "vllm_http"), at_most=0.5),
    Comparison("paced", "paced_cpu_d_over_b", _cpu("penstock_http", "vllm_http"), at_most=0.5),
    Comparison("paced", "paced_cpu_e_over_d", _cpu("penstock_parsed", "penstock_http"), at_most=1.5),
    Comparison("paced", "paced_tokens_per_message_c", _tokens_per_message),
    Comparison("alone", "added_ttft_ms", _added_ttft_ms, at_most=3.0),
    Comparison("alone", "alone_ttft_c_over_b", _ttft("penstock", "vllm_http"), at_most=1.0),
    Comparison("alone", "alone_ttft_d_over_b", _ttft("penstock_http", "vllm_http"), at_most=1.0),
)


def comparisons(measured: Collection[str]) -> tuple[Comparison, ...]:
    """Return what is compared where these paths were measured. A rival is compared with vLLM's server, and Penstock
    over the same protocol with the rival.
    """
    with_rivals = []
    for rival in RIVALS:
        if rival in measured:
            with_rivals += _against(rival, "vllm_http")
            with_rivals += _against("penstock" if rival.endswith("grpc") else "penstock_http", rival)
    return (*COMPARISONS, *with_rivals)


def _against(one: str, other: str) -> list[Comparison]:
    name = f"{LETTERS[one]}_over_{LETTERS[other]}"
    return [
        Comparison("saturated", f"saturated_cpu_{name}", _cpu(one, other)),
        Comparison("saturated", f"saturated_tokens_{name}", _speed(one, other)),
        Comparison("paced", f"paced_cpu_{name}", _cpu(one, other)),
        Comparison("alone", f"alone_ttft_{name}", _ttft(one, other)),
    ]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval that contains the median with 95 % confidence; all values where they are fewer than six.

    It holds for any distribution of the values (order statistics; see H. A. David, Order Statistics).
    """
    ordered, count = sorted(values), len(values)
    # The median is outside of both ends if fewer than `cut` values fall on one side of it.
    cut, below = 0, 0.5**count
    while 2 * below <= 0.05 and 2 * (cut + 1) < count:
        cut += 1
        below += math.comb(count, cut) * 0.5**count
    first = max(0, cut - 1)
    return ordered[first], ordered[count - 1 - first]


def fields_of(phases: Mapping[str, Rounds]) -> dict[str, Any]:
    """Return everything for the JSON file. `phases` are the rounds of each mode."""
    modes = {
        mode: {path: pooled([each[path] for each in rounds]) for path in LETTERS if path in rounds[0]}
        for mode, rounds in phases.items()
    }
    if any(not set(PATHS) <= set(rounds[0]) for rounds in phases.values()):
        return {"modes": modes}
    rounds_of = {each.name: each.values(phases[each.mode]) for each in comparisons(modes[MODES[0]])}
    ratios = {name: statistics.median(values) for name, values in rounds_of.items()}
    return {
        "modes": modes,
        "added_ttft_ms": ratios.pop("added_ttft_ms"),
        "ratios": ratios,
        "intervals": {name: interval(values) for name, values in rounds_of.items()},
        "rounds": rounds_of,
    }
