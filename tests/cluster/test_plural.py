"""Counts are said as people say them."""

from __future__ import annotations

import pytest

from cluster.errors import QueueFullError
from cluster.plural import counted
from loadtest.plan.report import said
from loadtest.plan.what_if import WhatIf


@pytest.mark.parametrize(
    ("said", "count", "words"),
    [
        ("0 replicas", 0, ("replica",)),
        ("1 replica", 1, ("replica",)),
        ("2 replicas", 2, ("replica",)),
        ("1,024 tokens", 1024, ("token",)),
        ("1 process", 1, ("process", "processes")),
        ("3 requests wait", 3, ("request waits", "requests wait")),
    ],
)
def test_a_count_has_the_number_of_its_noun(said: str, count: int, words: tuple[str, ...]) -> None:
    assert said == counted(count, *words)


def test_messages_count_so() -> None:
    assert "1 request of tenant 'a' already waits for 'p'" in str(QueueFullError("p", 1, 2.0, tenant="a"))
    assert "2 requests already wait for 'p'" in str(QueueFullError("p", 2, 2.0))


def test_a_what_if_that_cannot_be_has_no_number_of_accelerators() -> None:
    assert "h200: infeasible: too small (on paper)" == said(WhatIf("h200", None, None, "too small"))
    assert "h200: 1 GPU, 2.00/h: 1 replica (on paper)" == said(WhatIf("h200", 1, 2.0, "1 replica"))
