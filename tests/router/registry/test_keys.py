"""Revocations that have done their work, in process."""

from __future__ import annotations

import time

from cluster.clock import ManualClock
from cluster.redis.in_process.server import InProcessRedis
from cluster.registry.contract import Author, Watcher
from cluster.registry.redis.store import RedisRegistryStore
from cluster.registry.view import RegistryView
from cluster.settings import Settings, load_settings
from penstock.v1 import registry_pb2 as api
from router.identity.caller import ANONYMOUS
from router.identity.revocations import Revocations
from router.registry.api import RegistryApi
from router.registry.keys import follow_revocations, revocation_of

DAY_MS = 86_400_000


def names(view: RegistryView) -> set[str]:
    return set(view.entries("revocation"))


async def test_revocations_go_when_no_work_of_their_keys_can_be_left() -> None:
    settings: Settings = load_settings(flags={}, environ={})
    longest_ms = round(1000 * max(settings.jobs.run_within_s, settings.router.http.responses_ttl_s))
    clock, revocations = ManualClock(), Revocations()
    view = RegistryView(RedisRegistryStore(InProcessRedis(clock), clock=clock), Watcher("r", "router"))
    follow_revocations(view, revocations)
    now_ms, ends = round(time.time() * 1000), list[str]()
    for number, age_ms in enumerate((longest_ms + 3 * DAY_MS, longest_ms + 2 * DAY_MS, longest_ms, 0)):
        clock.advance((now_ms - age_ms - clock.wall_ms()) / 1000)
        await view.apply([revocation_of(f"{number:016x}")], Author("ops"))

    # The first one is given again, so it is no old one.
    request = api.EditRegistryRequest(edits=[api.RegistryEdit(kind="key", name="0" * 16, end_streams=True)])
    request.wait.seconds = 0
    await RegistryApi(settings, view).edit(request, ANONYMOUS)
    assert {f"{0:016x}", f"{2:016x}", f"{3:016x}"} == names(view)
    for number, left in enumerate([True, False, True, True]):
        revocations.began(f"{number:016x}", 1, lambda number=number: ends.append(str(number)))  # type: ignore[misc]
        assert left == (str(number) in ends)

    ((last, *_),) = [(await view.history("revocation", "", 5)).changes]
    assert (None, f"{1:016x}") == (last.after, last.name)
    reply = await RegistryApi(settings, view).changes(api.ListRegistryChangesRequest(limit=1), ANONYMOUS)
    assert {"end_streams": True} == dict(reply.changes[0].difference.before)
    assert not reply.changes[0].difference.HasField("after")
    await view.close()
