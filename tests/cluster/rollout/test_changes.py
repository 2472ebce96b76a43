"""Changes of a pool's settings by a roll-out."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.rollout.changes import changed, successor
from cluster.settings import PoolSettings


@pytest.mark.parametrize(
    ("changes", "revision"),
    [
        ({"model": "org/other"}, ""),
        ({"model": "s3://bucket/m"}, ""),
        ({"model": "org/other", "revision": "v2"}, "v2"),
        ({"model": "org/m"}, "v1"),
        ({"revision": "v2"}, "v2"),
        ({"vllm": {"max_num_seqs": 8}}, "v1"),
    ],
)
def test_a_revision_goes_with_its_model(changes: dict[str, Any], revision: str) -> None:
    assert revision == changed(PoolSettings(model="org/m", revision="v1"), changes).revision


@pytest.mark.parametrize(
    ("before", "changes", "revision"),
    [
        ({"revision": "v2"}, {"model": "org/other"}, ""),
        ({"model": "org/a", "revision": "v2"}, {"model": "org/b"}, ""),
        ({"model": "org/a", "revision": "v2"}, {"model": None}, "v1"),
        ({"model": "org/a", "revision": "v2"}, {"model": "org/b", "revision": "v3"}, "v3"),
        ({"model": "org/a", "revision": "v2"}, {"model": "org/a"}, "v2"),
        ({"model": "org/a", "revision": "v2"}, {"vllm": {"max_num_seqs": 8}}, "v2"),
    ],
)
def test_a_revision_of_an_earlier_roll_out_goes_with_its_model(
    before: dict[str, Any], changes: dict[str, Any], revision: str
) -> None:
    own = PoolSettings(model="org/m", revision="v1")
    assert revision == changed(own, successor(own, before, changes)).revision
