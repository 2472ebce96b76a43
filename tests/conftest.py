"""What the tests of all packages share: Redis servers, and logs that they find as they were."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

# Routers in the tests' process read their sockets as router processes do.
from router import polling  # noqa: F401 - before anything that imports gRPC

# isort: split

import hypothesis
import pytest

from cluster.telemetry.logs import PACKAGES
from tests.cluster.queue.servers import Server, running

pytest_plugins = ("tests.support.selection", "tests.support.notes", "tests.support.watchdog")

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


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A command that runs in the tests' process sends its logs elsewhere; later tests want to hear of them."""
    loggers = [logging.getLogger(name) for name in PACKAGES]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
