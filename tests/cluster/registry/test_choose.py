"""Each target of an alias gets its part of the keys, and a change of a weight moves no more keys than it must."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.registry.choose import choose, part_of
from cluster.settings import AliasTarget

KEYS = [f"session-{number}" for number in range(1_500)]
SLACK = 0.065
"""Five standard deviations of a part of so many keys."""
weights = st.lists(st.integers(0, 100), min_size=1, max_size=5).filter(any)


def targets(parts: list[int]) -> list[AliasTarget]:
    return [AliasTarget(model=f"m{number}", weight=part) for number, part in enumerate(parts)]


def chosen(parts: list[int]) -> list[str]:
    found = [choose(targets(parts), key) for key in KEYS]
    return [target.model for target in found if target is not None]


@settings(max_examples=8, deadline=None)
@given(weights)
def test_each_target_gets_its_part_of_the_keys(parts: list[int]) -> None:
    found = chosen(parts)
    assert len(KEYS) == len(found)
    for number, part in enumerate(parts):
        assert found.count(f"m{number}") / len(KEYS) == pytest.approx(part / sum(parts), abs=SLACK)
        assert part or f"m{number}" not in found


@settings(max_examples=8, deadline=None)
@given(weights, st.data())
def test_a_changed_weight_moves_keys_only_to_or_from_its_target_and_as_few_as_it_can(
    parts: list[int], data: st.DataObject
) -> None:
    changed = data.draw(st.integers(0, len(parts) - 1))
    now = [*parts]
    now[changed] = data.draw(st.integers(1, 100))
    before, after = chosen(parts), chosen(now)
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert all(f"m{changed}" in pair for pair in moved)
    needed = abs(parts[changed] / sum(parts) - now[changed] / sum(now))
    assert len(moved) / len(KEYS) == pytest.approx(needed, abs=SLACK)


@settings(max_examples=8, deadline=None)
@given(weights, st.randoms())
def test_the_order_of_the_targets_means_nothing(parts: list[int], random: Random) -> None:
    listed = targets(parts)
    mixed = [*listed]
    random.shuffle(mixed)
    assert [choose(listed, key) for key in KEYS[:200]] == [choose(mixed, key) for key in KEYS[:200]]


def test_without_a_weight_there_is_no_choice() -> None:
    assert choose(targets([0]), "key") is None
    assert choose([], "key") is None


@given(st.lists(st.text(), max_size=3), st.lists(st.text(), max_size=3))
def test_keys_that_differ_in_their_parts_are_different_keys(one: list[str], other: list[str]) -> None:
    assert 0 <= part_of(*one) < 1
    assert (one == other) == (part_of(*one) == part_of(*other))
