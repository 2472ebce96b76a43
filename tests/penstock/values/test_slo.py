"""What a budget pays for."""

from __future__ import annotations

import sys

import pytest

from penstock.values.slo import OperatingPoint


@pytest.mark.parametrize(
    ("budget", "price", "replicas"),
    [(None, 2.0, None), (12.0, 0.0, None), (12.0, 2.0, 3), (0.3, 0.05, 3), (0.0, 2.0, 0)],
)
def test_a_budget_pays_for_whole_replicas(budget: float | None, price: float, replicas: int | None) -> None:
    point = OperatingPoint(price_per_gpu_hour=price, budget_per_hour=budget)

    assert replicas == point.affordable(2)


def test_a_budget_beyond_all_numbers_is_no_bound() -> None:
    point = OperatingPoint(price_per_gpu_hour=0.5, budget_per_hour=sys.float_info.max)

    assert point.affordable(1) is None
