"""Contents that kill engines: what one router marks, all of them hear of."""

from __future__ import annotations

import pytest

from cluster.models import Windows
from cluster.queue.entries import Mark
from tests.cluster.queue.backends import Backend, Scene, entry


@pytest.fixture
async def shared(scene: Scene) -> Scene:
    """A pool with one slot and two routers."""
    await scene.start({"r1": Windows(1, 10**6, 10**6)}, ("A", "B"))
    return scene


async def test_a_mark_is_told_with_the_next_submit_and_heartbeat(shared: Scene) -> None:
    queue = shared.queue
    assert (0, ()) == ((await queue.quarantine("B")).count, (await queue.quarantine("B")).marks)
    assert 0 == (await queue.submit("B", entry("q1"))).marks

    await queue.quarantine("A", Mark(b"\x00\xff", "i1", 5_000))

    assert [1, 1] == [(await queue.submit("B", entry("q2"))).marks, (await queue.submit("A", entry("q3"))).marks]
    assert 1 == (await shared.beat_router("B")).marks
    assert ((1, (Mark(b"\x00\xff", "i1", 5_000),))) == _parts(await queue.quarantine("B"))


async def test_a_mark_ends_and_can_be_renewed(shared: Scene, backend: Backend) -> None:
    queue = shared.queue
    await queue.quarantine("A", Mark(b"x", "i1", 5_000))
    backend.clock.advance(4.0)
    assert (Mark(b"x", "i1", 1_000),) == (await queue.quarantine("B")).marks
    backend.clock.advance(1.0)
    assert () == (await queue.quarantine("B")).marks
    again = await queue.quarantine("A", Mark(b"x", "i2", 9_000))
    assert (2, (Mark(b"x", "i2", 9_000),)) == _parts(again)


async def test_a_mark_for_no_time_is_counted_and_not_shown(shared: Scene) -> None:
    """`router.quarantine_s` may be less than a millisecond."""
    await shared.queue.quarantine("A", Mark(b"x", "i1", 5_000))
    assert (2, (Mark(b"x", "i1", 5_000),)) == _parts(await shared.queue.quarantine("A", Mark(b"y", "i2", 0)))
    assert (3, ()) == _parts(await shared.queue.quarantine("A", Mark(b"x", "i3", 0)))
    assert (3, ()) == _parts(await shared.queue.quarantine("B"))


@pytest.mark.parametrize(
    ("mark", "wrong"),
    [
        (Mark(b"", "i1", 5_000), "content must not be empty"),
        (Mark(b"x", "i1", -1), "left_ms must be at least 0, got -1"),
    ],
)
async def test_what_is_no_mark_is_refused(shared: Scene, mark: Mark, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        await shared.queue.quarantine("A", mark)
    assert (0, ()) == _parts(await shared.queue.quarantine("B"))


async def test_marks_come_in_the_order_of_their_contents(shared: Scene) -> None:
    for number in (7, 1, 5, 200, 3):
        everything = await shared.queue.quarantine("A", Mark(bytes([number]), "i", 10_000 - number))
    for found in (everything, await shared.queue.quarantine("B")):
        assert [bytes([number]) for number in (1, 3, 5, 7, 200)] == [mark.content for mark in found.marks]


async def test_a_bounded_number_is_kept_and_those_that_end_first_make_room(shared: Scene) -> None:
    for number in range(258):
        await shared.queue.quarantine("A", Mark(b"%d" % number, "i", 10_000 + number))
    kept = {mark.content for mark in (await shared.queue.quarantine("B")).marks}
    assert {b"%d" % number for number in range(2, 258)} == kept


def _parts(marks: object) -> tuple[int, tuple[Mark, ...]]:
    return marks.count, marks.marks  # type: ignore[attr-defined]
