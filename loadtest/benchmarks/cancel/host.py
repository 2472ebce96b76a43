"""A testbed in a process of its own, so that its memory is separate from that of its clients."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cluster.gc_tuning import settle_heap
from loadtest.benchmarks.cancel.testbed import Stand
from loadtest.benchmarks.child import Child, answer


class Host(Child):
    """Process of the testbed, seen from its parent. Its questions are "targets", "held" and "census"."""

    targets: list[str]


@asynccontextmanager
async def hosted(folder: Path, redis_url: str, sections: Mapping[str, Any]) -> AsyncIterator[Host]:
    """Run a testbed while the block runs."""
    words = ("--folder", str(folder), "--redis", redis_url, "--sections", json.dumps(sections))
    host = await Host.start("loadtest.benchmarks.cancel.host", *words)
    try:
        host.targets = await host.ask("targets")
        yield host
    finally:
        await host.stop()


async def _serve(folder: Path, redis_url: str, sections: Mapping[str, Any]) -> None:
    stand = Stand(folder, redis_url, sections)
    await stand.start()
    settle_heap()
    figures = {"targets": lambda: stand.targets, "held": stand.held, "census": stand.census}
    await answer(lambda question: figures[question]())
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
