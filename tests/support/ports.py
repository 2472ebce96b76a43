"""Ports for servers that tests start on a number they must know before."""

from __future__ import annotations

import contextlib
import random
import socket

import pytest

_CHOICE = random.SystemRandom()
"""Property tests seed the module's own generator, the same in every process."""
_BUS = 10_000
"""A Redis server of a cluster also listens on its port + this."""
_given: set[int] = set()
"""Not given twice by one process: the first server may not have started yet."""


def free_port() -> int:
    """Find a port on 127.0.0.1 on which nobody listens; it and the one of a cluster's bus above it can be bound."""
    # Both lie below those that the kernel hands out (32,768 and up): neither a connection nor another test's server
    # gets one before ours starts, or while it is down.
    while True:
        port = _CHOICE.randrange(10_000, 22_000)
        with contextlib.suppress(OSError), socket.socket() as own, socket.socket() as bus:
            own.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + _BUS))
            if port not in _given:
                _given.add(port)
                return port


def require_ipv6() -> None:
    """Skip the test on a machine without an IPv6 loopback address."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no ::1 ({error.strerror}): IPv6 addresses are NOT tested")
