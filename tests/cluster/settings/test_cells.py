"""How many cells a pool may have."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import SettingsError
from cluster.settings import load_settings


def load(**pool: Any) -> int:
    return load_settings(flags={"pools": {"large": pool}}, environ={}).pools["large"].cells


def test_a_pool_has_one_cell_unless_it_asks_for_more() -> None:
    assert 1 == load()
    assert 1 == load(autoscale={"mode": "active", "min_replicas": 0, "max_replicas": 2})
    assert 3 == load(cells=3, replicas=3)
    assert 2 == load(cells=2, replicas=1, autoscale={"mode": "active", "min_replicas": 2, "max_replicas": 4})


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        ({"cells": 2}, "cells must be at most replicas = 1, because each has its own, got 2"),
        (
            {"cells": 3, "replicas": 8, "autoscale": {"mode": "active", "min_replicas": 2, "max_replicas": 9}},
            "cells must be at most autoscale.min_replicas = 2, because each has its own, got 3",
        ),
        ({"cells": 65, "replicas": 100}, "pools.large.cells"),
        ({"cells": 0}, "pools.large.cells"),
    ],
)
def test_each_cell_needs_a_replica_at_all_times(pool: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        load(**pool)
