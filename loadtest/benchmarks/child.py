"""A process that answers its parent: one line of JSON for each line of its input.

Nothing of a router is imported: clients read sockets as gRPC does by default.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any, Self

_LINE = 1 << 26


class Child:
    """Process that answers, seen from its parent."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str, *words: str) -> Self:
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, *words, stdin=pipe, stdout=pipe, limit=_LINE
            )
        )

    async def ask(self, question: str = "figures") -> Any:
        """Return the answer to one line."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self._process.stdin.write(f"{question}\n".encode())
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with status {await self._process.wait()}")
        return json.loads(line)

    async def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """End it in order. Harmless after `kill`."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()


async def answer(figures: Callable[[str], Any]) -> None:
    """Write what `figures` returns, or what its coroutine does, for every line of the input, until it ends."""
    questions = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    while line := await questions.readline():
        found = figures(line.decode().strip())
        sys.stdout.write(json.dumps(await found if asyncio.iscoroutine(found) else found) + "\n")
        sys.stdout.flush()
