"""Loads to plan for."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, fmean

from cluster.control.step_model import Shape
from cluster.errors import SettingsError
from loadtest.load.schedule.lengths import recorded
from loadtest.traces import TraceRequest, read_trace, scale_rate

LONG_Z = 2.33
"""Place in a normal distribution of 0.99."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load: its rate, its requests, and their lengths."""

    name: str
    rate: float
    """Requests per second."""
    shape: Shape
    """A mean request."""
    longest: int
    """Prompt and output tokens of the longest request."""
    trace: tuple[TraceRequest, ...] = ()
    """Recorded requests. Empty where arrivals are drawn."""
    spread: float = 0.0
    """Standard deviation over mean of drawn lengths."""
    pairs: Sequence[tuple[int, int]] = ()
    """Recorded prompt and output lengths to draw from instead."""
    factor: float = 1.0
    """Factor on the number of recorded requests, at their own pace."""
    prefix_hit: float = 0.0
    """Part of each drawn prompt that the prefix cache has."""
    most: int = 0
    """Prompt and output tokens of the longest request that is drawn; 0 without a bound."""
    vectors: bool = False
    """Whether vectors are asked for, and no text. Each comes with the one token of its output."""

    @property
    def has_gaps(self) -> bool:
        """Whether any output has a second token, and so a time between tokens."""
        if self.trace:
            return any(each.output_tokens > 1 for each in self.trace)
        if self.pairs:
            return any(output > 1 for _, output in self.pairs)
        # Drawn lengths are rounded.
        return not self.vectors and (self.spread > 0 or round(self.shape.output_tokens) > 1)

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts begin alike."""
        return self.prefix_hit > 0 or any(each.block_ids for each in self.trace[:1])

    def prompt_within(self, part: float) -> float:
        """Return the prompt tokens that a part of the requests does not exceed: of more than the rest, the shortest."""
        if self.trace or self.pairs:
            lengths = [each.prompt_tokens for each in self.trace] or [prompt for prompt, _ in self.pairs]
            return float(sorted(lengths)[int(part * (len(lengths) - 1))])
        sigma = math.sqrt(math.log1p(self.spread**2))
        return self.shape.prompt_tokens * math.exp(NormalDist().inv_cdf(part) * sigma - sigma**2 / 2)

    def within(self, context: int) -> Load:
        """Return the load with a spread of drawn lengths that is small enough for their longest requests to fit a
        context, and none beyond. Servers refuse longer ones, so a mean that was measured is one of requests that fit.
        """
        if self.trace or self.pairs or not self.spread:
            return self
        if self.longest <= context:
            return replace(self, most=context)
        low, high = 0.0, self.spread
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if _longest(self.shape, middle) <= context else (low, middle)
        name = f"{self.name}, which spread by {low:.2f} of their mean, as the context of {context:,} allows"
        return replace(self, name=name, spread=low, longest=_longest(self.shape, low), most=context)

    def slice(self, share: float, count: int, seed: int) -> list[TraceRequest]:
        """Return a part of the load: requests of its kind at `share` of its rate, `count` at most."""
        if self.trace:
            return _thinned(self.trace, share * self.factor, count, seed)
        return _drawn(self, share * self.rate, count, seed)


def steady_load(
    rate: float, prompt_tokens: float, output_tokens: float, spread: float = 0.5, prefix_hit: float = 0.0
) -> Load:
    """Return a load of Poisson arrivals with log-normal lengths.

    Args:
        rate: requests per second.
        prompt_tokens: mean.
        output_tokens: mean.
        spread: standard deviation of both lengths over their mean. With 0 each length is the mean.
        prefix_hit: part of each prompt that the prefix cache has.

    Raises:
        SettingsError: a value is out of range.
    """
    for name, value in (("rate", rate), ("prompt-tokens", prompt_tokens), ("output-tokens", output_tokens)):
        if not 0 < value < math.inf:
            raise SettingsError(f"{name} must be above 0, got {value:g}")
    if not 0 <= spread <= 3:
        raise SettingsError(f"spread must be 0 to 3, got {spread:g}")
    if not 0 <= prefix_hit < 1:
        raise SettingsError(f"prefix-hit must be at least 0 and below 1, got {prefix_hit:g}")
    name = f"{rate:g} requests/s of {prompt_tokens:g} + {output_tokens:g} tokens{_hit_words(prefix_hit)}"
    shape = Shape(prompt_tokens, output_tokens, prefix_hit * prompt_tokens)
    return Load(name, rate, shape, _longest(shape, spread), spread=spread, prefix_hit=prefix_hit)


def _hit_words(prefix_hit: float) -> str:
    return f", {prefix_hit:.0%} of each prompt in the prefix cache" if prefix_hit else ""


def _longest(shape: Shape, spread: float) -> int:
    """Return the prompt and output tokens that one drawn request in a hundred exceeds."""
    sigma = math.sqrt(math.log1p(spread**2))
    return math.ceil((shape.prompt_tokens + shape.output_tokens) * math.exp(LONG_Z * sigma - sigma**2 / 2))


USUAL = Shape(1000.0, 250.0)
"""Mean request that is planned for where nobody says another one."""


def usual_within(context: int, spread: float) -> Shape:
    """Return the usual mean request, or a shorter one of the same proportions whose longest requests fit a context."""
    longest = steady_load(1.0, USUAL.prompt_tokens, USUAL.output_tokens, spread).longest
    if longest <= context:
        return USUAL
    # Rounded down, so that the longest fit for sure.
    part = context / longest
    return Shape(*(float(max(1, math.floor(part * each))) for each in (USUAL.prompt_tokens, USUAL.output_tokens)))


def load_of_lengths(rate: float, path: Path, prefix_hit: float = 0.0) -> Load:
    """Return a load of Poisson arrivals with lengths that were recorded together.

    Args:
        rate: requests per second.
        path: a trace, or a CSV with num_prefill_tokens and num_decode_tokens.
        prefix_hit: part of each prompt that the prefix cache has.

    Raises:
        SettingsError: the rate is out of range.
        TraceError: the file cannot be read.
    """
    if not 0 < rate < math.inf:
        raise SettingsError(f"rate must be above 0, got {rate:g}")
    pairs = recorded(path).pairs
    prompts = fmean(prompt for prompt, _ in pairs)
    shape = Shape(prompts, fmean(output for _, output in pairs), prefix_hit * prompts)
    longest = max(prompt + output for prompt, output in pairs)
    name = f"{rate:g} requests/s with lengths of {path.name}{_hit_words(prefix_hit)}"
    return Load(name, rate, shape, longest, pairs=pairs, prefix_hit=prefix_hit)


def recorded_load(
    path: Path,
    limit: int | None = None,
    faster: float = 1.0,
    *,
    factor: float = 1.0,
    tell: Callable[[str], None] = lambda _: None,
) -> Load:
    """Read a recorded load. Its rate is the mean over its time.

    Args:
        path: the trace.
        limit: number of requests to read, the earliest ones; None for all.
        faster: factor on the rate that shortens the time.
        factor: factor on the number of requests at the trace's own pace.
        tell: called with the number of lines that are left out, if there are any.

    Raises:
        TraceError: the file cannot be read.
        SettingsError: the trace has fewer than two moments of arrival.
    """
    trace = scale_rate(read_trace(path, limit, tell=tell), faster)
    span = trace[-1].arrival_s
    if span <= 0:
        raise SettingsError(f"trace: {path} must have requests at two moments at least")
    prompts, outputs = sum(r.prompt_tokens for r in trace), sum(r.output_tokens for r in trace)
    cached = _cached_tokens(trace)
    shape = Shape(prompts / len(trace), outputs / len(trace), cached / len(trace))
    longest = max(r.prompt_tokens + r.output_tokens for r in trace)
    name = path.name if factor == 1 else f"{path.name}, {factor:g} times the requests"
    if cached:
        name += f", {cached / prompts:.0%} of the prompt tokens come again"
    return Load(name, factor * len(trace) / span, shape, longest, tuple(trace), factor=factor)


def _cached_tokens(trace: Sequence[TraceRequest]) -> int:
    """Return the prompt tokens that a cache without an end would have."""
    seen: set[int] = set()
    cached = 0
    for request in trace:
        known = 0
        for block in request.full_blocks:
            if block not in seen:
                break
            known += request.block_tokens
        seen.update(request.full_blocks)
        # The last token of a prompt is computed in any case.
        cached += min(known, request.prompt_tokens - 1)
    return cached


SPREAD_S = 5.0
"""Time over which copies of a recorded request scatter, seconds. Rates change more slowly."""


def _thinned(trace: Sequence[TraceRequest], share: float, count: int, seed: int) -> list[TraceRequest]:
    rnd = random.Random(seed)
    kept: list[TraceRequest] = []
    for request in trace:
        copies = int(share) + (rnd.random() < share % 1)
        # The first stays where it was recorded.
        for copy in range(copies):
            late = rnd.uniform(0.0, SPREAD_S) if copy else 0.0
            kept.append(replace(request, arrival_s=request.arrival_s + late) if late else request)
    kept = sorted(kept, key=lambda each: each.arrival_s) or [trace[0]]
    if len(kept) > count:
        # The busiest stretch: a plan that holds there holds elsewhere.
        starts = range(len(kept) - count + 1)
        first = min(starts, key=lambda at: kept[at + count - 1].arrival_s - kept[at].arrival_s)
        kept = kept[first : first + count]
    begin = kept[0].arrival_s
    return [replace(each, number=n, arrival_s=each.arrival_s - begin) for n, each in enumerate(kept)]


BLOCK = 16
"""Tokens per block of a drawn prompt's shared beginning."""


def _drawn(load: Load, rate: float, count: int, seed: int) -> list[TraceRequest]:
    rnd = random.Random(seed)
    sigma = math.sqrt(math.log1p(load.spread**2))

    def length(mean: float) -> int:
        drawn = mean * math.exp(rnd.gauss(0.0, sigma) - sigma**2 / 2) if sigma else mean
        return max(1, round(drawn))

    requests, at = [], 0.0
    for number in range(count):
        if load.pairs:
            prompt, output = rnd.choice(load.pairs)
        else:
            prompt, output = length(load.shape.prompt_tokens), length(load.shape.output_tokens)
            while sigma and 0 < load.most < prompt + output:
                prompt, output = length(load.shape.prompt_tokens), length(load.shape.output_tokens)
        shared = range(int(load.prefix_hit * prompt) // BLOCK)
        requests.append(TraceRequest(number, at, prompt, output, block_ids=shared, block_tokens=BLOCK * bool(shared)))
        at += rnd.expovariate(rate)
    return requests
