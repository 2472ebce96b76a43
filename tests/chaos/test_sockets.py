"""A connection leads to the process that has it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from tests.chaos.sockets import HOST, holder_of, inode_of


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, int, int]]:
    """One end of a connection, its port, and that of the other end."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((HOST, port)) as client:
            yield client, client.getsockname()[1], port


def test_each_end_has_its_own_inode(ends: tuple[socket.socket, int, int]) -> None:
    client, local, remote = ends
    assert os.fstat(client.fileno()).st_ino == inode_of(local, remote)
    assert inode_of(local, remote) != inode_of(remote, local)


def test_the_holder_is_found_among_others(ends: tuple[socket.socket, int, int]) -> None:
    _, local, remote = ends
    assert os.getpid() == holder_of(local, remote, (os.getppid(), os.getpid()))
    assert holder_of(local, remote, (os.getppid(),)) is None


def test_no_connection_has_no_holder(ends: tuple[socket.socket, int, int]) -> None:
    client, local, remote = ends
    client.close()
    # The other end is in a server's queue that nobody takes it from.
    assert holder_of(local, remote, (os.getpid(),)) is None
