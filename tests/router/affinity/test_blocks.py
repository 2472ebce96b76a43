"""How beginnings are named, and whose cache a request may share."""

from __future__ import annotations

import pytest

from cluster.trust.secret import ClusterSecret
from router.affinity import CacheSalts, Trail, trail_of
from router.affinity.blocks import block_ends

SECRET = ClusterSecret(b"0123456789abcdef")


def trail(ids: list[int], scope: bytes = b"", session: str = "") -> Trail:
    return trail_of(ids, scope, session, block_tokens=64)


def common(one: Trail, other: Trail) -> int:
    """Count names that two trails share from the first on; none may be shared after the first difference."""
    equal = [a == b for a, b in zip(one.blocks, other.blocks, strict=False)]
    length = equal.index(False) if False in equal else len(equal)
    assert not any(equal[length:])
    return length


@pytest.mark.parametrize(("changed", "shared"), [(0, 0), (63, 0), (64, 1), (640, 10), (1_999, 31)])
def test_a_name_covers_everything_up_to_its_blocks_end(changed: int, shared: int) -> None:
    ids = list(range(2_000))
    other = list(ids)
    other[changed] += 1

    assert common(trail(ids), trail(other)) == shared


def test_blocks_grow_so_that_the_longest_prompt_has_few() -> None:
    assert block_ends(64, 127) == (64,)
    assert block_ends(64, 2_048 + 256)[-2:] == (2_048, 2_304)
    assert len(block_ends(64, 1_000_000)) <= 220


def test_a_prompt_that_goes_on_keeps_its_names() -> None:
    ids = list(range(5_000))

    assert trail(ids[:3_000]).blocks == trail(ids).blocks[: len(trail(ids[:3_000]).blocks)]


def test_the_place_of_a_prompt_does_not_move_while_it_grows() -> None:
    """A second router that sees the second turn first draws the same replica."""
    ids = list(range(5_000))

    assert trail(ids[:1_024]).place == trail(ids[:3_000]).place == trail(ids).place
    assert trail(ids).place != trail(list(range(1, 5_001))).place
    assert trail(ids, session="s").place == trail([1], session="s").place


def test_a_scope_changes_every_name() -> None:
    ids = list(range(2_000))
    one, other = trail(ids, b"a", "s"), trail(ids, b"b", "s")

    assert not set(one.blocks) & set(other.blocks)
    assert one.session != other.session
    assert one.place != other.place


def test_salts_are_the_same_at_every_router_and_differ_by_tenant_and_cluster() -> None:
    salts, again = CacheSalts(SECRET, shared=False), CacheSalts(SECRET, shared=False)
    elsewhere = CacheSalts(ClusterSecret(b"another secret !"), shared=False)

    assert salts.of("acme") == again.of("acme")
    assert len({salts.of("acme"), salts.of("globex"), elsewhere.of("acme"), ""}) == 4
    assert "acme" not in salts.of("acme")


def test_shared_caches_have_no_salt() -> None:
    assert CacheSalts(SECRET, shared=True).of("acme") == ""
