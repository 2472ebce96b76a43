"""One process of the cluster, seen from its parent.

A router's process reads sockets in its own way, by a variable that its children inherit. So the parent imports nothing
of a router, and clients read sockets as gRPC does by default.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any


class Node:
    """Process of a node, seen from its parent."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child

    @classmethod
    async def start(cls, folder: Path, redis_url: str, sections: dict[str, Any], role: str, count: int = 1) -> Node:
        """Start the process. `role` is "router" or a pool's name, `count` the number of replicas."""
        words = ("--folder", str(folder), "--redis", redis_url, "--sections", json.dumps(sections))
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "loadtest.benchmarks.reconnect.node_process",
                *words,
                "--role",
                role,
                "--count",
                str(count),
            ),
            stdin=pipe,
            stdout=pipe,
            limit=1 << 24,
        )
        node = cls(child)
        await node.ask("figures")
        return node

    async def ask(self, question: str) -> Any:
        """Ask "figures"."""
        if self._child.stdin is None or self._child.stdout is None:
            raise RuntimeError("the node has no pipes")
        self._child.stdin.write(f"{question}\n".encode())
        line = await self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the node ended with status {await self._child.wait()}")
        return json.loads(line)

    async def kill(self) -> None:
        """End it as a crash does."""
        self._child.kill()
        await self._child.wait()

    async def stop(self) -> None:
        """End it in order. Harmless after `kill`."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        await self._child.wait()
