"""Results of requests with client keys that the queue misses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cluster.errors import QueueUnavailableError
from cluster.lifecycle import TaskOwner
from router.dispatch.client_keys import ClientKeys
from tests.cluster.queue.backends import turns

MB = b"x" * 2**20


class Away:
    """A queue that may be away."""

    def __init__(self) -> None:
        self.away = True
        self.tenants_away = {"gone"}
        self.told: list[tuple[str, str, bytes]] = []
        self.calls = 0

    async def finish_key(self, _router: str, tenant: str, key: str, request_id: str, result: bytes) -> bool:
        self.calls += 1
        if self.away or tenant in self.tenants_away:
            raise QueueUnavailableError("away")
        self.told.append((key, request_id, result))
        return True


def keys_of(queue: Away, mb: float = 3.0) -> ClientKeys:
    """Return the keys of one pool."""
    context: Any = SimpleNamespace(queue=queue, router_id="A", owner=TaskOwner("test"))
    return ClientKeys(context, mb)


async def test_results_are_told_again_in_their_order_once_the_queue_answers() -> None:
    queue = Away()
    keys = keys_of(queue)
    for name in ("a", "b"):
        await keys.finish("acme", name, f"r{name}", name.encode())
    keys.tell_again()
    await turns(5)
    # One call finds that the queue is still away.
    assert 3 == queue.calls
    queue.away = False
    for _ in range(2):
        keys.tell_again()
        await turns(5)
    assert [("a", "ra", b"a"), ("b", "rb", b"b")] == queue.told


async def test_a_tenant_whose_place_is_away_keeps_no_other_back() -> None:
    queue = Away()
    keys = keys_of(queue)
    for tenant in ("gone", "gone", "acme"):
        await keys.finish(tenant, f"k{queue.calls}", "r", b"result")
    queue.away = False
    keys.tell_again()
    await turns(5)
    assert [("k2", "r", b"result")] == queue.told
    # Of the other tenant one was tried.
    assert 5 == queue.calls


async def test_a_key_is_freed_at_once_or_not_at_all() -> None:
    """Another call may have taken its request over by the time at which the queue is back."""
    queue = Away()
    keys = keys_of(queue)
    await keys.finish("acme", "free", "r", b"")
    await keys.finish("acme", "kept", "r", b"result")
    await keys.finish("acme", "kept", "r", b"")
    queue.away = False
    keys.tell_again()
    await turns(5)
    assert [("kept", "r", b"result")] == queue.told


async def test_what_waits_is_bounded_and_the_oldest_goes_first() -> None:
    queue = Away()
    keys = keys_of(queue)
    for name in ("a", "b", "c"):
        await keys.finish("acme", name, f"r{name}", MB)
    queue.away = False
    keys.tell_again()
    await turns(5)
    assert ["b", "c"] == [key for key, _, _ in queue.told]
