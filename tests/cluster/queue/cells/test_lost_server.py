"""A pool of cells on a Redis Cluster of which a server is lost for good."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

from cluster.alerts.rules_file import all_alerts
from cluster.errors import QueueUnavailableError
from cluster.queue.cells.choice import home
from cluster.queue.cells.layout import Layout
from cluster.queue.cells.names import cell_name
from cluster.queue.cells.queue import CellQueue
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.entries import QueueLimits
from cluster.queue.heartbeats import RouterBeat
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.keys import pool_key
from tests.chaos.masters import SLOTS, Masters
from tests.cluster.queue.backends import POOL, entry
from tests.cluster.queue.servers import launch, require_binary, wait_answer
from tests.support.waiting import until

CELLS = 2
FLAG = "--cluster-fix-with-unreachable-masters"


def owner(cell: int, servers: int) -> str:
    slot = key_slot(pool_key(cell_name(POOL, cell), "pool").encode())
    return f"redis-{slot * servers // SLOTS}"


@pytest.mark.slow
async def test_a_cell_whose_server_is_lost_goes_on_at_the_servers_that_are_left(tmp_path: Path) -> None:
    require_binary("7.0")
    if (tool := shutil.which("redis-cli")) is None:
        pytest.skip("there is no redis-cli on this machine")
    masters = Masters(3)
    lost, kept = owner(1, 3), owner(0, 3)
    assert lost != kept
    tenant = next(name for name in map(str, range(100)) if home(name, CELLS) == 1)
    servers = {name: launch(masters.command(name, tmp_path)) for name in masters.names}

    def opened(name: str) -> RedisQueue:
        return RedisQueue(masters.url, name, QueueLimits(), 20.0)

    queue = CellQueue(POOL, opened, CellsSeen(Layout(CELLS)), keys_last_s=60.0)

    async def heard() -> bool:
        with contextlib.suppress(QueueUnavailableError):
            await queue.heartbeat_router(RouterBeat("A", ()))
            return not queue.seen.away
        return False

    def fix(*flags: str) -> None:
        # It ends with 1 also where all is well: it is told nothing of a server that is gone.
        command = (tool, "--cluster", "fix", f"127.0.0.1:{masters.ports[kept]}", *flags)
        subprocess.run(command, input=b"yes\n", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    try:
        for port in masters.ports.values():
            with contextlib.closing(redis.Redis(port=port, protocol=2)) as client:
                wait_answer(client)
        await masters.join()
        await until(heard)
        await queue.submit("A", entry("before", tenant=tenant, client_key="key", digest="d"))
        servers[lost].kill()
        servers[lost].wait()
        failed = f"{masters.ports[lost]}@"

        async def seen_as_lost() -> bool:
            nodes = str(await masters.call(kept, "CLUSTER", "NODES"))
            return any(failed in line and "master,fail " in line for line in nodes.replace("\\n", "\n").splitlines())

        await until(seen_as_lost, 30)
        fix()
        assert not await heard()
        with pytest.raises(QueueUnavailableError):
            await queue.submit("A", entry("lost", tenant=tenant, client_key="another", digest="d"))

        runbook = next(each.runbook for each in all_alerts() if each.name == "PenstockCellAway")
        assert FLAG in runbook
        fix(FLAG)
        await until(heard, 30)
        answer = await queue.submit("A", entry("after", tenant=tenant, client_key="key", digest="d"))
        # What only that server had is gone, the key of the first request as well.
        assert answer.known is None
        assert [] == list(await queue.usage(tenant, 0, 99_999))
    finally:
        await queue.close()
        for process in servers.values():
            process.kill()
            process.wait()
