"""A local cluster that runs beside the tests, on a thread and loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from cluster.addresses import host_port
from cluster.bootstrap.local import LocalCluster
from cluster.settings import load_settings

Result = TypeVar("Result")


class ClusterThread:
    """Owns a LocalCluster for a whole test session, whatever loops the tests use."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)

    def start(self) -> None:
        """Start the cluster; returns when it serves."""
        self._thread.start()
        self.run(self.cluster.start())

    def stop(self) -> None:
        """Stop the cluster."""
        self.run(self.cluster.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the cluster's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def begin(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start a coroutine on the cluster's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def target(self, router: int = 0) -> str:
        """host:port of a router."""
        return host_port(self.cluster.settings.router.host, self.cluster.routers[router].port)


@contextlib.contextmanager
def running_cluster(sections: dict[str, Any]) -> Iterator[ClusterThread]:
    """Run a cluster of these settings, and of nothing that the environment says."""
    log = logging.getLogger("tests.cluster")
    settings = load_settings(flags=sections, environ={})
    cluster = LocalCluster(settings, lambda step, text: log.warning("%s: %s", step, text), same_port=False)
    running = ClusterThread(cluster)
    running.start()
    yield running
    running.stop()
