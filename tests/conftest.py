"""Redis servers that the tests of all packages share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.cluster.queue.servers import Server, running


@pytest.fixture(scope="session")
def redis_servers() -> Iterator[dict[str, Server]]:
    """Servers that are started once, by kind, when a test first asks."""
    with contextlib.ExitStack() as stack:

        class Lazy(dict[str, Server]):
            def __missing__(self, kind: str) -> Server:
                self[kind] = server = stack.enter_context(running(kind))
                return server

        yield Lazy()
