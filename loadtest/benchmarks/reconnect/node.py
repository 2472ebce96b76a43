"""One process of the cluster, seen from its parent.

A router's process reads sockets in its own way, by a variable that its children inherit. So the parent imports nothing
of a router, and clients read sockets as gRPC does by default.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadtest.benchmarks.child import Child


async def start_node(folder: Path, redis_url: str, sections: dict[str, Any], role: str, count: int = 1) -> Child:
    """Start the process. `role` is "router" or a pool's name, `count` the number of replicas."""
    words = ("--folder", str(folder), "--redis", redis_url, "--sections", json.dumps(sections))
    node = await Child.start(
        "loadtest.benchmarks.reconnect.node_process", *words, "--role", role, "--count", str(count)
    )
    await node.ask()
    return node
