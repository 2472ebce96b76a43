"""Which replicas a newer Ray cluster replaces: the pure decision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.ray_serve.successors import Standing, superseded


def members(cluster: str, count: int, started_at: float, *, ready: int = 99, reached: bool = True) -> list[Standing]:
    """`count` replicas of a cluster, of which so many are ready."""
    return [Standing(f"{cluster}{n}", cluster, started_at, n < ready, reached) for n in range(count)]


OLD = members("old", 2, 100.0)


@pytest.mark.parametrize(
    ("newer", "wanted", "gone"),
    [
        ([], 2, set()),
        (members("new", 2, 200.0, ready=0), 2, set()),
        (members("new", 2, 200.0, ready=1), 2, {"old0"}),
        (members("new", 2, 200.0), 2, {"old0", "old1"}),
        (members("new", 3, 200.0), 2, {"old0", "old1"}),
        # The pool is to be smaller: all of the older one give way.
        (members("new", 1, 200.0), 1, {"old0", "old1"}),
        # An autoscaler has its own number, so the newer one must have as many.
        (members("new", 1, 200.0), None, {"old0"}),
        (members("new", 2, 200.0), None, {"old0", "old1"}),
        # Nothing is in its place.
        (members("new", 2, 200.0, reached=False), 2, set()),
        (members("new", 0, 200.0), 0, set()),
        # No RayCluster: a replica of `penstock up`, or of the last release.
        ([Standing("x", "", 900.0, ready=True, reached=True)], 2, set()),
        # The other one is older.
        (members("new", 2, 50.0), 2, {"new0", "new1"}),
    ],
)
def test_the_older_give_way_as_the_newer_come(newer: list[Standing], wanted: int | None, gone: set[str]) -> None:
    assert gone == superseded([*OLD, *newer], wanted)


def test_a_cluster_is_as_old_as_its_oldest_replica_says() -> None:
    """Its head was replaced, so that a replica of it has a later session than all of the newer cluster."""
    restarted = Standing("old9", "old", 300.0, ready=True, reached=True)
    assert {"old0", "old1", "old9"} == superseded([*OLD, restarted, *members("new", 3, 200.0)], 3)


def test_of_three_clusters_only_those_that_work_replace() -> None:
    """The middle one is replaced itself, and so replaces nothing."""
    found = superseded([*OLD, *members("mid", 1, 200.0), *members("new", 1, 300.0)], 2)
    assert {"mid0", "old0"} == found


STANDINGS = st.lists(
    st.builds(
        Standing,
        st.uuids().map(str),
        st.sampled_from(["", "a", "b", "c"]),
        st.sampled_from([1.0, 2.0, 3.0]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)
WANTED = st.none() | st.integers(0, 6)


@given(STANDINGS, WANTED)
def test_whoever_gives_way_leaves_enough_that_work(standings: list[Standing], wanted: int | None) -> None:
    """At least as many as the pool wants, or as the largest of the clusters that give way had."""
    found = superseded(standings, wanted)
    left = sum(each.reached and each.ready for each in standings if each.cluster and each.replica_id not in found)
    for cluster in {each.cluster for each in standings if each.replica_id in found}:
        own = [each for each in standings if each.cluster == cluster and each.ready]
        stay = sum(each.replica_id not in found and not each.reached for each in own)
        assert left + stay >= min(len(own), wanted if wanted is not None else len(own))
        assert left >= 1


@given(STANDINGS, WANTED)
def test_the_newest_cluster_and_replicas_without_one_stay(standings: list[Standing], wanted: int | None) -> None:
    found = superseded(standings, wanted)
    starts: dict[str, float] = {}
    for each in standings:
        starts[each.cluster] = min(each.started_at, starts.get(each.cluster, each.started_at))
    newest = max((cluster for cluster in starts if cluster), key=lambda name: (starts[name], name), default="")
    assert not {each.cluster for each in standings if each.replica_id in found} & {"", newest}


@given(STANDINGS, WANTED, st.randoms())
def test_the_order_of_the_registry_says_nothing(standings: list[Standing], wanted: int | None, random: object) -> None:
    shuffled = list(standings)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert superseded(standings, wanted) == superseded(shuffled, wanted)


@given(STANDINGS, WANTED)
def test_none_that_takes_no_work_is_replaced(standings: list[Standing], wanted: int | None) -> None:
    assert all(each.ready for each in standings if each.replica_id in superseded(standings, wanted))
