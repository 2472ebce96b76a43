"""The console beside a local cluster: a process that is started again when it ends. Nothing else needs it."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import NoReturn

from cluster.addresses import host_port
from cluster.bootstrap.process import ChildProcess
from cluster.bootstrap.ready import START_S, wait_file
from cluster.errors import BootstrapError

_LOG = logging.getLogger(__name__)

HOST = "127.0.0.1"
"""Only this machine's users see the page, whoever may call the routers."""
AGAIN_S = 5.0
"""Pause before it is started again."""


class LocalConsole:
    """Process of the console."""

    def __init__(self, run_dir: Path, target: str, port: int) -> None:
        """`target`: a router's address; `port`: where it is in use, a free one is taken."""
        self._run_dir = run_dir
        self._target = target
        self._port = port
        self._process: ChildProcess | None = None

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{host_port(HOST, self._port)}"

    async def start(self) -> None:
        """Start it; at the return the page can be opened.

        Raises:
            BootstrapError: it did not start.
        """
        ready_file = self._run_dir / "console.json"
        ready_file.unlink(missing_ok=True)
        command = [
            *(sys.executable, "-m", "cluster.cli.main", "console", "--target", self._target, "--host", HOST),
            *("--port", str(self._port), "--any-port", "--ready-file", str(ready_file)),
        ]
        process = self._process = await ChildProcess.start("console", command, self._run_dir / "console.log")
        try:
            fields = await wait_file(ready_file, process, START_S)
        except BaseException:
            await self.stop()
            raise
        self._port = fields["port"]

    async def keep(self) -> NoReturn:
        """Start it again whenever it ends, until this is cancelled."""
        while True:
            if self._process is not None:
                await self._process.wait()
                _LOG.error("console.ended", extra=self._process.obituary())
            await asyncio.sleep(AGAIN_S)
            try:
                await self.start()
            except (BootstrapError, OSError) as error:
                _LOG.warning("console.not_started", extra={"error": str(error)})

    async def stop(self) -> None:
        """End it. May be called twice."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop(2.0)
