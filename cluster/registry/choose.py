"""Choice of an alias' target for a key. Pure, and the same on every router.

It is rendezvous hashing with weights: each target gets an exponential random number with its weight as rate, and the
least one wins. So each target gets its part of the keys. When one weight changes, keys move only to or from its target,
and no more of them than the change asks for. The order of the targets means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

from cluster.settings import AliasTarget

_SCALE = 1 << 53


def part_of(*key: str) -> float:
    """Return a number in [0, 1) for a key, evenly spread over keys."""
    hashed = blake2b(digest_size=8)
    for part in key:
        # With its length, so that no two keys are the same text.
        data = part.encode()
        hashed.update(len(data).to_bytes(4, "little") + data)
    return (int.from_bytes(hashed.digest(), "little") >> 11) / _SCALE


def choose(targets: Sequence[AliasTarget], *key: str) -> AliasTarget | None:
    """Return the target of a key; None where no target has a weight."""

    def race(target: AliasTarget) -> float:
        return -math.log(1 - part_of(*key, target.model, target.adapter)) / target.weight

    return min((target for target in targets if target.weight), key=race, default=None)
