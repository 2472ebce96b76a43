"""CPU cores of replicas."""

from __future__ import annotations

import os

import pytest

from cluster.settings import load_settings
from deployments.hosting import choose_cores


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(10, 18)))


def test_pools_and_replicas_have_cores_of_their_own() -> None:
    settings = load_settings(flags={"pools": {"a": {"replicas": 2}, "b": {"tensor_parallel_size": 2}}}, environ={})
    assert [(10,), (11,)] == [choose_cores(settings, "a", rank, 1) for rank in range(2)]
    assert (12, 13) == choose_cores(settings, "b", 0, 2)


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1), (2, 4)])
def test_replicas_that_have_changed_their_number_of_ranks_do_not_meet(old: int, new: int) -> None:
    settings = load_settings(flags={"pools": {"a": {"replicas": 2, "tensor_parallel_size": old}}}, environ={})
    first, second = (choose_cores(settings, "a", rank, new) for rank in range(2))
    assert (new, new) == (len(first), len(second))
    assert set() == set(first) & set(second)
