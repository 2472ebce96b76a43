"""An owner ends what runs nowhere, and says what attempts of it used."""

from __future__ import annotations

import pytest

from cluster.models import Windows
from cluster.queue.entries import Mail, Quota, Settlement
from tests.cluster.queue.backends import Backend, Scene, entry

ONE = Windows(sequences=1, kv_tokens=1000, prefill_tokens=1000)
RAN = Settlement(5, requests=1, prompt_tokens=10, cached_tokens=4, cost=0.5)
"""What a request used in all, less what the ledger has of its first attempt."""


@pytest.fixture
async def interrupted(scene: Scene) -> Scene:
    """A's "early" has run and waits again; B's "other" holds the only slot."""
    await scene.start({"r1": ONE}, routers=("A", "B"))
    assert (await scene.queue.submit("A", entry("early"))).grant
    await scene.queue.submit("B", entry("other"))
    await scene.queue.requeue("A", "early", "base-early.1", Settlement(5, gpu_seconds=2.0))
    # It stands before the others, so it gives way to one of them on purpose.
    grant = next(iter((await scene.queue.collect("A")).grants))
    await scene.queue.refuse("A", "early", grant.attempt)
    await scene.queue.cancel("B", "acme", "other")
    await scene.queue.withdraw("B", "other", None)
    return scene


async def used(scene: Scene) -> tuple[float, ...]:
    lines = await scene.queue.usage("acme", 0, 10**6)
    return tuple(
        sum(getattr(line, name) for line in lines)
        for name in ("requests", "prompt_tokens", "output_tokens", "cached_tokens", "gpu_seconds", "cost")
    )


async def test_what_ran_is_entered_when_it_ends_in_line(interrupted: Scene, backend: Backend) -> None:
    assert (0, 0, 0, 0, 2.0, 0) == await used(interrupted)

    assert Mail() == await interrupted.queue.withdraw("A", "early", RAN)
    await interrupted.queue.withdraw("A", "early", RAN)

    assert (1, 10, 5, 4, 2.0, 0.5) == await used(interrupted)
    assert backend.leftovers() == set()


@pytest.mark.parametrize("caller", ["A", "B"])
async def test_a_cancel_leaves_it_to_the_owner_to_say_what_ran(
    interrupted: Scene, backend: Backend, caller: str
) -> None:
    assert "early" == await interrupted.queue.cancel(caller, "acme", "early")

    assert [("early", "cancel")] == [
        (each.request_id, each.kind) for each in (await interrupted.queue.collect("A")).orders
    ]
    await interrupted.queue.withdraw("A", "early", RAN)
    assert (await interrupted.queue.collect("A")).orders == ()
    assert 1 == (await used(interrupted))[0]
    assert backend.leftovers() == set()


async def test_a_grant_that_comes_meanwhile_is_given_back(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": ONE})
    await scene.queue.submit("A", entry("ours"))
    await scene.queue.submit("A", entry("next"))

    mail = await scene.queue.withdraw("A", "ours", None)

    assert ["next"] == [grant.request_id for grant in mail.grants]
    await scene.queue.release("A", "next", "base-next.1", Settlement(1))
    assert backend.leftovers() == set()


async def test_what_another_router_has_adopted_stays(scene: Scene) -> None:
    await scene.start({"r1": ONE}, routers=("A", "B"))
    await scene.queue.submit("A", entry("running"))
    await scene.queue.submit("A", entry("waiting"))
    for name in ("running", "waiting"):
        assert await scene.queue.adopt("B", "acme", name) is not None

        assert Mail() == await scene.queue.withdraw("A", name, RAN)

    assert (0, 0, 0, 0, 0, 0) == await used(scene)
    # That answered the orders "moved".
    assert (await scene.queue.collect("A")).orders == ()
    assert (await scene.queue.collect("B")).orders == ()
    assert ["waiting"] == [grant.request_id for grant in (await scene.queue.withdraw("B", "running", None)).grants]


@pytest.mark.parametrize(("ran", "left"), [(None, 100), (RAN, 85)])
async def test_the_quota_gets_back_what_was_not_used(scene: Scene, ran: Settlement | None, left: int) -> None:
    """Also where a grant was refused: that alone used nothing."""
    quota = Quota(tokens_per_minute=100)
    await scene.start({"r1": ONE})
    grant = (await scene.queue.submit("A", entry("q1", prompt_tokens=10, expected_tokens=60, quota=quota))).grant
    assert grant
    await scene.queue.refuse("A", "q1", grant.attempt)

    await scene.queue.withdraw("A", "q1", ran)

    fits = entry("q2", prompt_tokens=left, expected_tokens=0, max_tokens=0, quota=quota)
    assert await scene.queue.submit("A", fits)
