"""What tests of links share."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import LinkDialer
from penstock.v1 import inference_pb2 as api
from router.links.ends import LinkEnds
from router.server import Router
from tests.support.flaky import Relay
from tests.support.stack import SECRET, Stack, request
from tests.support.waiting import until

LONG = {"max_tokens": 400, "ignore_eos": True}


def ends_of(
    address: str,
    *,
    secret: ClusterSecret = SECRET,
    replica_id: str = "demo-r0",
    dialer: LinkDialer = LinkDialer(None),  # noqa: B008  # it opens nothing
) -> LinkEnds:
    """Describe a link of a router of the test's own."""
    return LinkEnds(replica_id, address, "router-x", secret, dialer, 5.0)


async def golden(stack: Stack, **sampling: Any) -> list[int]:
    """Return the undisturbed output."""
    return list((await stack.inference().Generate(request(**sampling))).choices[0].token_ids)


async def read_until(call: Any, tokens: int) -> list[api.StreamGenerateResponse]:
    """Read a stream until so many tokens came."""
    events: list[api.StreamGenerateResponse] = []
    while sum(len(event.delta.token_ids) for event in events) < tokens:
        events.append(await call.read())
    return events


def newest_token(events: list[api.StreamGenerateResponse]) -> bytes:
    """Return the newest resume token of a stream."""
    return next(event.started.resume_token for event in reversed(events) if event.HasField("started"))


async def kill(router: Router) -> None:
    """End a router as SIGKILL would: no drain, no farewell to clients, replicas or the queue."""
    for pool in router.pools.values():
        pool._membership._keeper._stopping = True
        await pool._membership.stop()
        for link in pool.replicas._links.values():
            await link._owner.close()
    assert router._server is not None
    await router._server.stop(grace=None)


class RelayedReplica:
    """Puts a relay between routers and a replica: the replica announces the relay's address."""

    def __init__(self) -> None:
        self.relay: Relay | None = None

    async def install(self, stack: Stack) -> Relay:
        replica = stack.replicas[0]
        self.relay = Relay(replica.address)
        replica.address = await self.relay.start()
        assert replica._announced is not None
        replica._announced = replace(replica._announced, address=replica.address)
        # The registry must show it before a router looks.
        keeper, now = replica._keeper, time.monotonic()
        assert keeper is not None
        await until(lambda: keeper._renewed_at > now)
        return self.relay
