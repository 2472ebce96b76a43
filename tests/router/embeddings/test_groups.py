"""The plan of groups."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.queue.entries import MAX_CHOICES, Quota
from router.embeddings.groups import GROUP_INPUTS, GROUP_TOKENS, most_groups, plan


@given(st.lists(st.integers(1, 512), min_size=1, max_size=2_048), st.integers(1, MAX_CHOICES))
def test_groups_have_every_input_once_in_order_and_none_is_empty(lengths: list[int], most: int) -> None:
    groups = plan(lengths, most)
    assert 0 == groups[0][0]
    assert len(lengths) == groups[-1][1]
    assert all(end == first for (_, end), (first, _) in itertools.pairwise(groups))
    assert all(end > first for first, end in groups)
    assert len(groups) <= most


@given(st.lists(st.integers(1, 256), min_size=16, max_size=2_048))
def test_groups_have_nearly_as_many_tokens_each(lengths: list[int]) -> None:
    sums = [sum(lengths[first:end]) for first, end in plan(lengths)]
    mean = sum(sums) / len(sums)
    assert all(abs(each - mean) <= 2 * max(lengths) for each in sums)


@pytest.mark.parametrize(
    ("inputs", "tokens", "groups"),
    [(1, 10, 1), (GROUP_INPUTS, 10, 1), (GROUP_INPUTS + 1, 1, 2), (2_048, 1, 16), (2_048, 146, 16), (9, 512, 2)],
)
def test_a_group_is_a_step_of_work(inputs: int, tokens: int, groups: int) -> None:
    assert groups == len(plan([tokens] * inputs))
    assert GROUP_TOKENS == 4_096


def test_a_quota_bounds_the_groups() -> None:
    assert MAX_CHOICES == most_groups(Quota())
    assert 3 == most_groups(Quota(concurrency=8, requests_per_minute=3, max_waiting=100))
