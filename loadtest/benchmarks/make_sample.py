"""Maker of the load that ships with the package: `python -m loadtest.benchmarks.make_sample`.

It is drawn, not recorded, so it has nobody's requests. Lengths are log-normals with the medians and spreads of the
kind `chat`, which fit those published for the conversations in Azure's LLM inference trace of 2023. Arrivals are a
Poisson process whose rate follows a wave with a burst, as such traces have over a day.
"""

from __future__ import annotations

import math
import random

from loadtest.benchmarks.ending import end
from loadtest.load.schedule.kinds import KINDS
from loadtest.traces.sample import SAMPLE

SECONDS, SEED = 1800.0, 20231
_MEAN_RATE, _SWING = 0.42, 0.6
_BURST_AT_S, _BURST_FOR_S, _BURST = 1080.0, 120.0, 2.0


def rate(at_s: float) -> float:
    """Return requests per second at a time."""
    wave = 1 - _SWING * math.cos(2 * math.pi * at_s / SECONDS)
    burst = _BURST if _BURST_AT_S <= at_s < _BURST_AT_S + _BURST_FOR_S else 1.0
    return _MEAN_RATE * wave * burst


def lines() -> list[str]:
    """Return the lines of the file."""
    rnd = random.Random(SEED)
    most = _MEAN_RATE * (1 + _SWING) * _BURST
    made, at_s = ["arrival_s,prompt_tokens,output_tokens"], 0.0
    while (at_s := at_s + rnd.expovariate(most)) < SECONDS:
        # Thinning gives a Poisson process of a changing rate.
        if rnd.random() * most < rate(at_s):
            prompt, output = KINDS["chat"].lengths.draw(rnd)
            made.append(f"{at_s:.1f},{prompt},{output}")
    return made


def main() -> None:
    SAMPLE.write_text("\n".join(lines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    end("sample-trace", main)
