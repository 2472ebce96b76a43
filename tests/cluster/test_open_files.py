"""A process takes as many open files as it may, and says which limit is too low."""

from __future__ import annotations

import resource

import pytest

from cluster import open_files
from cluster.errors import SetupError
from cluster.open_files import need_open_files, raise_open_files


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limits of a process, the newest last."""
    found = [(1024, 5000)]
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda _kind: found[-1])
    monkeypatch.setattr(open_files.resource, "setrlimit", lambda _kind, both: found.append(both))
    return found


def test_the_soft_limit_becomes_the_hard_one(limits: list[tuple[int, int]]) -> None:
    assert 5000 == raise_open_files()
    assert (5000, 5000) == limits[-1]


def test_a_limit_that_is_high_enough_is_no_error(limits: list[tuple[int, int]]) -> None:
    need_open_files(5000, "the router")
    assert (5000, 5000) == limits[-1]


def test_a_limit_that_is_too_low_is_named(limits: list[tuple[int, int]]) -> None:
    with pytest.raises(SetupError, match=r"the router needs 5,001 open files, and RLIMIT_NOFILE allows 5,000; .* 5001"):
        need_open_files(5001, "the router")


def test_without_a_limit_any_number_will_do(limits: list[tuple[int, int]]) -> None:
    limits.append((1024, resource.RLIM_INFINITY))
    need_open_files(1 << 40, "the router")
