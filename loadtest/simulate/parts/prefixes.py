"""Beginnings that prompts share: those of a trace, made-up ones, and where a run found them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from cluster.errors import SettingsError
from loadtest.simulate.parts.settings import SharedPrefix
from loadtest.simulate.parts.tiers import Found
from loadtest.traces import TraceRequest
from loadtest.traces.columns import Trace

GPU = "gpu"


class _Ids(Sequence[int]):
    """Block ids in two runs, which take no room."""

    __slots__ = ("_rest", "_shared")

    def __init__(self, shared: range, rest: range) -> None:
        self._shared, self._rest = shared, rest

    def __len__(self) -> int:
        return len(self._shared) + len(self._rest)

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...

    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        return self._shared[place] if place < len(self._shared) else self._rest[place - len(self._shared)]

    def __iter__(self) -> Iterator[int]:
        yield from self._shared
        yield from self._rest


def share(trace: Iterable[TraceRequest], shared: SharedPrefix, block_tokens: int, seed: int) -> Sequence[TraceRequest]:
    """Give prompts beginnings that they share. Shorter prompts, and those not drawn, share nothing.

    Raises:
        SettingsError: the trace tells which prompts begin alike, or none is longer than a beginning.
    """
    rnd = random.Random(seed)
    blocks = shared.tokens // block_tokens
    if not blocks:
        raise SettingsError(f"shared-prefix must be at least one block of {block_tokens} tokens, got {shared.tokens}")
    free, longer = blocks * shared.number, False

    def one(request: TraceRequest) -> TraceRequest:
        nonlocal free, longer
        if request.block_tokens:
            raise SettingsError(
                "shared-prefix has no effect on a trace that tells which prompts begin alike, "
                f"got {shared.tokens} tokens"
            )
        mine = range(0)
        if request.prompt_tokens > shared.tokens:
            longer = True
            if rnd.random() < shared.part:
                first = blocks * rnd.randrange(shared.number)
                mine = range(first, first + blocks)
        rest = -(-request.prompt_tokens // block_tokens) - len(mine)
        ids, free = _Ids(mine, range(free, free + rest)), free + rest
        return replace(request, block_ids=ids, block_tokens=block_tokens)

    given = Trace.of(map(one, trace))
    if not longer:
        raise SettingsError(
            f"shared-prefix must be shorter than the trace's longest prompt, or nothing shares it, got {shared.tokens}"
        )
    return given


@dataclass(frozen=True, slots=True)
class Reuse:
    """What prompts could find if nothing were ever forgotten."""

    prompt_tokens: int
    reused_tokens: int
    """Tokens of the first full blocks that an earlier prompt has too."""


def reuse_of(trace: Iterable[TraceRequest]) -> Reuse:
    """Count the reuse in a trace, in the order of arrival."""
    seen: set[int] = set()
    prompts = reused = 0
    for request in trace:
        prompts += request.prompt_tokens
        known = True
        for block in request.full_blocks:
            known = known and block in seen
            reused += request.block_tokens * known
            seen.add(block)
    return Reuse(prompts, reused)


@dataclass(slots=True)
class PrefixTally:
    """Where the beginnings of a run's prompts were found."""

    found: Counter[str] = field(default_factory=Counter)
    """Tokens of completed requests that were not computed, by where they were."""
    loads: int = 0
    """Requests that waited for a tier."""
    load_s: float = 0.0
    """Seconds that they waited, added up."""
    _looked: dict[str, list[Found]] = field(default_factory=dict)

    def looked(self, request_id: str, found: list[Found]) -> None:
        """Note where the beginning of a prompt is when it comes to its first replica."""
        self._looked.setdefault(request_id, found)

    def waited(self, seconds: float) -> None:
        """Note a load."""
        self.loads += 1
        self.load_s += seconds

    def ended(self, request_id: str, cached_tokens: int) -> None:
        """Note how many of a request's tokens were not computed. What was loaded may be gone when it began; what was
        not there may be.
        """
        for tier, tokens in self._looked.pop(request_id, ()):
            taken = min(tokens, cached_tokens)
            self.found[tier] += taken
            cached_tokens -= taken
        self.found[GPU] += cached_tokens

    def as_json(self, reuse: Reuse) -> dict[str, Any]:
        """Return the figures of a run of a trace."""
        prompts = max(1, reuse.prompt_tokens)
        return {
            "prompt_tokens": reuse.prompt_tokens,
            "reuse_in_trace": reuse.reused_tokens / prompts,
            "hit": self.found.total() / prompts,
            "hit_by_tier": {tier: tokens / prompts for tier, tokens in sorted(self.found.items())},
            "loads": self.loads,
            "load_mean_s": self.load_s / self.loads if self.loads else 0.0,
        }
