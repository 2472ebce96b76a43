"""What is simulated: the size of a pool, and its load."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.queue.cells.names import MOST_CELLS

CLASS_PARTS = (0.6, 0.3, 0.1)
"""Parts of the requests by class."""
SLO_MS = (1_000, 5_000, 60_000)
"""Time to the first token that each class is promised."""
EXPECTED_TOKENS = 256
"""Output tokens that an entry is charged for at first, as the setting router.expected_output_tokens."""
CLASS_SHARES = (0.0, 0.2, 0.05)
"""Reserved shares of the classes, as by default."""
PREFILL_MS = 0.1
"""Time per token of a prompt."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """A pool and its load. Every field is a flag of the command."""

    cells: int = 4
    replicas: int = 64
    routers: int = 4
    tenants: int = 1_000
    rate: float = 320.0
    """Requests per second."""
    seconds: int = 60
    """Virtual time that is measured."""
    warm_up: int = 20
    """Virtual seconds before it."""
    sequences: int = 64
    """Slots of a replica."""
    prompt: int = 400
    """Median tokens of a prompt."""
    output: int = 200
    """Median output tokens."""
    itl_ms: float = 30.0
    """Time per output token, whatever the batch."""
    skew: float = 0.8
    """Exponent of the tenants' sizes: the n-th largest sends 1/n^skew as much as the largest."""
    pinned: float = 0.1
    """Part of the tenants with a quota, or with keys: all their requests go to their homes."""
    affinity: float = 0.3
    """Part of the requests that prefer the replica of their tenant's last one."""
    swing: float = 0.0
    """How far the rate goes up and down around its mean within a minute, as a part of it."""
    burst: float = 1.0
    """How many times the usual rate comes in the middle tenth of the measured time."""
    weights: bool = True
    """Whether tenants have different weights: 1, 2 and 4 in turn."""
    day: bool = False
    """Whether the measured time has the phases of a day: a wave, overload, hot homes, a cell that does not answer, and
    replicas that go and come."""
    seed: int = 1

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: one is out of its range.
        """
        _within("cells", self.cells, 1, MOST_CELLS)
        _within("replicas", self.replicas, 1, 10**6)
        for name in ("routers", "tenants", "seconds", "sequences", "prompt", "output"):
            _within(name, getattr(self, name), 1, 10**7)
        _within("warm-up", self.warm_up, 0, 10**5)
        _within("rate", self.rate, 0.01, 10**7)
        _within("itl-ms", self.itl_ms, 0.01, 10**4)
        _within("skew", self.skew, 0.0, 5.0)
        for name in ("pinned", "affinity", "swing"):
            _within(name, getattr(self, name), 0.0, 1.0)
        _within("burst", self.burst, 0.0, 100.0)


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"--{name} must be from {least:g} to {most:g}, got {value:g}")
