"""A testbed in a process of its own, so that its memory is separate from that of its clients."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cluster.gc_tuning import settle_heap
from loadtest.benchmarks.cancel.testbed import Stand

_LINE = 1 << 20


class Host:
    """Process of the testbed, seen from its parent: one line of JSON per question."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self.targets: list[str] = []

    async def ask(self, question: str) -> Any:
        """Ask "targets", "held" or "census"."""
        if self._child.stdin is None or self._child.stdout is None:
            raise RuntimeError("the stand has no pipes")
        self._child.stdin.write(f"{question}\n".encode())
        line = await self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the stand ended with status {await self._child.wait()}")
        return json.loads(line)


@asynccontextmanager
async def hosted(folder: Path, redis_url: str, sections: Mapping[str, Any]) -> AsyncIterator[Host]:
    """Run a testbed while the block runs."""
    words = ("--folder", str(folder), "--redis", redis_url, "--sections", json.dumps(sections))
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtest.benchmarks.cancel.host", *words, stdin=pipe, stdout=pipe, limit=_LINE
    )
    try:
        host = Host(child)
        host.targets = await host.ask("targets")
        yield host
    finally:
        if child.stdin is not None:
            child.stdin.close()
        await child.wait()


async def _serve(folder: Path, redis_url: str, sections: Mapping[str, Any]) -> None:
    stand = Stand(folder, redis_url, sections)
    await stand.start()
    settle_heap()
    questions = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    while line := await questions.readline():
        question = line.decode().strip()
        answer = {"targets": lambda: stand.targets, "held": stand.held, "census": stand.census}[question]()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    await stand.stop()


def main() -> None:
    """Serve until standard input ends."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--redis", required=True)
    parser.add_argument("--sections", type=json.loads, required=True)
    options = parser.parse_args()
    uvloop.run(_serve(options.folder, options.redis, options.sections))


if __name__ == "__main__":
    main()
