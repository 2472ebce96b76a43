"""Redis servers that the tests of all packages share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import hypothesis
import pytest

from tests.cluster.queue.servers import Server, running

# How long an example takes says nothing on a machine that others use too.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")


@pytest.fixture(scope="session")
def redis_servers() -> Iterator[dict[str, Server]]:
    """Servers that are started once, by kind, when a test first asks."""
    with contextlib.ExitStack() as stack:

        class Lazy(dict[str, Server]):
            def __missing__(self, kind: str) -> Server:
                self[kind] = server = stack.enter_context(running(kind))
                return server

        yield Lazy()
