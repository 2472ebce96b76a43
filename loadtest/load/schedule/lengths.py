"""The lengths of requests."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from cluster.errors import TraceError, plain_reason
from loadtest.traces import open_trace, read_trace
from loadtest.traces.formats import MOST_TOKENS, shown

_SHAREGPT = ("num_prefill_tokens", "num_decode_tokens")


class Lengths(Protocol):
    """Source of lengths."""

    def draw(self, rnd: random.Random) -> tuple[int, int]:
        """Return prompt and output tokens, both at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Constant lengths."""

    prompt: int
    output: int

    def draw(self, rnd: random.Random) -> tuple[int, int]:
        return self.prompt, self.output


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Both lengths drawn independently, each log-normal and cut at its maximum."""

    prompt_median: float
    prompt_sigma: float
    prompt_most: int
    output_median: float
    output_sigma: float
    output_most: int

    def draw(self, rnd: random.Random) -> tuple[int, int]:
        prompt = self.prompt_median * math.exp(rnd.gauss(0, self.prompt_sigma))
        output = self.output_median * math.exp(rnd.gauss(0, self.output_sigma))
        return max(1, min(self.prompt_most, round(prompt))), max(1, min(self.output_most, round(output)))


@dataclass(frozen=True, slots=True)
class Recorded:
    """Pairs of lengths that really occurred together."""

    pairs: Sequence[tuple[int, int]]

    def draw(self, rnd: random.Random) -> tuple[int, int]:
        return self.pairs[int(rnd.random() * len(self.pairs))]


@lru_cache(maxsize=4)
def recorded(path: Path) -> Recorded:
    """Read the lengths of a trace, or of a CSV with num_prefill_tokens and num_decode_tokens.

    Raises:
        TraceError: the file cannot be read, or has no known format.
    """
    try:
        with open_trace(path) as file:
            rows = csv.DictReader(file)
            if not set(_SHAREGPT) <= set(rows.fieldnames or ()):
                file.seek(0)
                requests = read_trace(path, file=file)
                return Recorded([(each.prompt_tokens, each.output_tokens) for each in requests])
            pairs = [_pair(path, number, row) for number, row in enumerate(rows, start=2)]
    except (OSError, UnicodeDecodeError) as error:
        detail = plain_reason(error) if isinstance(error, OSError) else "is not text in UTF-8"
        raise TraceError(str(path), 0, "", detail) from error
    except csv.Error as error:
        raise TraceError(str(path), 0, "", f"is no CSV: {error}") from error
    if not pairs:
        raise TraceError(str(path), 0, "", "has no requests")
    return Recorded(pairs)


def _pair(path: Path, line: int, row: dict[str, str]) -> tuple[int, int]:
    values = []
    for name in _SHAREGPT:
        text = row[name]
        if not (text or "").isdecimal():
            raise TraceError(str(path), line, name, f"must be a whole number, got {text!r}")
        # A number of thousands of digits is none that Python reads.
        if len(text.lstrip("0")) > len(str(MOST_TOKENS)) or int(text) > MOST_TOKENS:
            raise TraceError(str(path), line, name, f"must be at most {MOST_TOKENS}, got {shown(text)}")
        values.append(max(1, int(text)))
    return values[0], values[1]
