"""What a router knows of the replicas of a pool."""

from __future__ import annotations

from pathlib import Path

from cluster.trust.tls import LinkDialer
from router.links.replicas import ReplicaSet
from tests.support.stack import SECRET, running_stack


async def test_a_replica_that_a_client_named_has_announced_no_tokenizer(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0) as stack:
        replica, set_up = stack.replicas[0], {"ping_s": 1.0, "attach_grace_s": 30.0}
        replicas = ReplicaSet("demo", "router-x", SECRET, LinkDialer(None), **set_up, on_change=int)
        assert await replicas.reach(replica.plan.replica_id, replica.address, 20.0) is not None
        assert (replica.plan.replica_id,) == replicas.connected()
        assert [] == replicas.reading("some digest")
        assert not replicas._awaited
        await replicas.close()
