"""Answers of a process to its parent. Nothing of a router is imported: clients read sockets as gRPC does by default."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any


async def answer(figures: Callable[[], dict[str, Any]]) -> None:
    """Write the figures for every line of the input, until it ends."""
    questions = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    while await questions.readline():
        sys.stdout.write(json.dumps(figures()) + "\n")
        sys.stdout.flush()
