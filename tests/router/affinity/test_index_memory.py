"""The index holds what its bound says, however often replicas are exchanged."""

from __future__ import annotations

import random

from router.affinity.index import BlockIndex


def test_replicas_that_are_gone_leave_nothing_behind() -> None:
    rnd, index = random.Random(1), BlockIndex(256, 3)
    for generation in range(50):
        replicas = [f"{generation}-{number}" for number in range(20)]
        for _ in range(200):
            first = rnd.randrange(400)
            index.note(range(first, first + 8), rnd.choice(replicas))

    assert len(index._tuples) <= 256 + 20 * 20 * 20
    assert len(index._tuples) <= 2 * 256
    assert {replica.split("-")[0] for kept in index._tuples for replica in kept} <= {"47", "48", "49"}
