"""A primary, a replica and three sentinels, all real and on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tests.cluster.queue.servers import require_binary, wait_answer
from tests.support.ports import free_port
from tests.support.waiting import until_sync

SERVICE = "waitingroom"


@dataclass
class Sentinels:
    """A running set; `primary` is the process that was the primary at first."""

    url: str
    primary: subprocess.Popen[bytes]
    replica_port: int

    def replica(self) -> redis.Redis:
        """Open a client of the server that was the replica at first, to be closed by the caller."""
        return redis.Redis(port=self.replica_port, protocol=2)


@contextlib.contextmanager
def running_sentinels() -> Iterator[Sentinels]:
    """Run the set in a folder of its own; sentinels act after half a second of silence."""
    server = require_binary("7.0")
    sentinel = shutil.which("redis-sentinel")
    if sentinel is None:
        reason = "no redis-sentinel on this machine: failover is NOT tested"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="penstock-sentinel-"))
    first, second, *watchers = (free_port() for _ in range(5))
    processes = []

    def launch(*command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        processes.append(process)
        return process

    def redis_server(port: int, *options: str) -> subprocess.Popen[bytes]:
        home = folder / str(port)
        home.mkdir()
        common = ("--bind", "127.0.0.1", "--save", "", "--dir", str(home), "--repl-diskless-sync-delay", "0")
        return launch(server, "--port", str(port), *common, *options)

    try:
        primary = redis_server(first)
        redis_server(second, "--replicaof", "127.0.0.1", str(first))
        for port in (first, second):
            with contextlib.closing(redis.Redis(port=port, protocol=2)) as client:
                wait_answer(client)
        with contextlib.closing(redis.Redis(port=first, protocol=2)) as client:
            until_sync(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
        for port in watchers:
            file = folder / f"sentinel-{port}.conf"
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {first} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} 500\n"
                f"sentinel failover-timeout {SERVICE} 3000\n"
            )
            launch(sentinel, str(file))
        for port in watchers:
            with contextlib.closing(redis.Redis(port=port, protocol=2, decode_responses=True)) as client:
                wait_answer(client)
                # They find each other and the replica through the primary.
                until_sync(
                    lambda client=client: (
                        (seen := client.sentinel_master(SERVICE))["num-slaves"] == 1
                        and seen["num-other-sentinels"] == len(watchers) - 1
                    )
                )
        hosts = ",".join(f"127.0.0.1:{port}" for port in watchers)
        yield Sentinels(f"redis+sentinel://{hosts}/{SERVICE}", primary, second)
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
