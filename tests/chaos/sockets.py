"""Which process has a TCP connection.

The kernel is asked for one connection. Its table in /proc has those of the whole machine, and reading it took up to
0.7 s on a busy one, for each connection, on the loop of clients and proxies.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable

HOST = "127.0.0.1"
_SOCK_DIAG = 4
"""Netlink's protocol for sockets."""
_BY_FAMILY = 20
"""Type of its questions and answers."""
_REQUEST = 1
_ANY = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_INODE_AT = _HEADER.size + 4 + 48 + 16
"""Place of the inode in an answer: behind four bytes, the connection's name, and four numbers."""
_PATIENCE_S = 2.0


def inode_of(local: int, remote: int) -> int | None:
    """Return the inode of the connection of this machine with itself from one port to another; None without one."""
    host = socket.inet_aton(HOST)
    name = struct.pack("!HH4s12x4s12x", local, remote, host, host) + struct.pack("=III", 0, _ANY, _ANY)
    question = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, _ANY) + name
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
        kernel.settimeout(_PATIENCE_S)
        kernel.send(_HEADER.pack(_HEADER.size + len(question), _BY_FAMILY, _REQUEST, 1, 0) + question)
        answer = kernel.recv(1 << 12)
    if _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    return int(struct.unpack_from("=I", answer, _INODE_AT)[0])


def holder_of(local: int, remote: int, pids: Iterable[int]) -> int | None:
    """Return which of some processes has a connection; None where it is none of them, or there is no connection."""
    inode = inode_of(local, remote)
    if inode is None:
        return None
    for pid in pids:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            if any(_target(entry.path) == f"socket:[{inode}]" for entry in entries):
                return pid
    return None


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        # It was closed meanwhile.
        return ""
