"""Aliases and the adapters that they name, in process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
import pytest_asyncio

from cluster.clock import ManualClock
from cluster.errors import InvalidRequestError
from cluster.redis.in_process.server import InProcessRedis
from cluster.registry.contract import Author, Edit, Watcher
from cluster.registry.redis.store import RedisRegistryStore
from cluster.registry.view import RegistryView
from cluster.settings import Settings, load_settings
from penstock.v1 import registry_pb2 as api
from router.identity.caller import ANONYMOUS
from router.registry.adapters import AdapterCalls
from router.registry.api import RegistryApi

POET = Edit("adapter", "poet", b'{"pool":"demo","source":"/poet"}')
VERSE = Edit("alias", "verse", b'{"targets":[{"model":"demo","adapter":"poet"}]}')
PLAIN = Edit("alias", "verse", b'{"targets":[{"model":"demo"}]}')


@pytest.fixture
def redis() -> InProcessRedis:
    return InProcessRedis(ManualClock())


@pytest_asyncio.fixture
async def view(redis: InProcessRedis) -> AsyncIterator[RegistryView]:
    made = RegistryView(RedisRegistryStore(redis, clock=ManualClock()), Watcher("r", "router"))
    yield made
    await made.close()


def settings(**aliases: Any) -> Settings:
    flags = {"pools": {"demo": {"engine": "sim", "sim": {"max_loras": 4}}}, "aliases": aliases}
    return load_settings(flags=flags, environ={})


def edit(kind: str, name: str, *, force: bool = False) -> api.EditRegistryRequest:
    """Return the deletion of an entry."""
    request = api.EditRegistryRequest(edits=[api.RegistryEdit(kind=kind, name=name)], force=force)
    request.wait.seconds = 0
    return request


async def test_an_alias_of_the_settings_comes_back_only_with_its_adapter(view: RegistryView) -> None:
    declared = settings(verse={"targets": [{"model": "demo", "adapter": "poet"}]})
    calls = RegistryApi(declared, view)
    await view.apply([PLAIN], Author("ops"))
    with pytest.raises(InvalidRequestError, match=r"alias 'verse' of the settings comes back.* to 'poet', no adapter"):
        await calls.edit(edit("alias", "verse"), ANONYMOUS)
    assert view.get("alias", "verse") is not None
    await view.apply([POET], Author("ops"))
    await calls.edit(edit("alias", "verse"), ANONYMOUS)
    assert view.get("alias", "verse") is None
    await view.apply([PLAIN, Edit("adapter", "poet", None)], Author("ops"))
    await calls.edit(edit("alias", "verse", force=True), ANONYMOUS)
    assert view.get("alias", "verse") is None


async def test_an_alias_that_was_put_while_a_deletion_waited_is_seen(
    redis: InProcessRedis, view: RegistryView, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = RegistryView(RedisRegistryStore(redis, clock=ManualClock()), Watcher("other", "router"))
    await view.apply([POET], Author("ops"))

    async def wait(_self: AdapterCalls, _edits: Iterable[Edit], _wait_s: float) -> None:
        await other.apply([VERSE], Author("ops"))

    monkeypatch.setattr(AdapterCalls, "check_unused", wait)
    with pytest.raises(InvalidRequestError, match="alias 'verse' sends requests to the adapter 'poet'"):
        await RegistryApi(settings(), view).edit(edit("adapter", "poet"), ANONYMOUS)
    assert view.get("adapter", "poet") is not None
    await other.close()
