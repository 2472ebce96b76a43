"""Where pods are on the network: on loopback addresses, or in network namespaces of their own."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

PREFIX = "pst"


class Network(Protocol):
    """Gives pods addresses."""

    alone: bool
    """Whether a pod has all ports for itself, so that its texts may say 0.0.0.0 and mean it."""

    def address(self, number: int) -> str:
        """Return the address of a pod, or of a Service."""
        ...

    def enter(self, number: int, folder: Path) -> tuple[str, ...]:
        """Return what to put before a command that runs in the pod; `folder` is the pod's own."""
        ...

    def clear(self, number: int) -> None:
        """End whatever still runs in the pod."""
        ...


class Loopback:
    """Needs no rights. Programs must listen on their pod's address only."""

    alone = False

    def __init__(self) -> None:
        self._net = f"127.{random.randrange(64, 250)}.{random.randrange(256)}"

    def address(self, number: int) -> str:
        """Return the address of a pod, or of a Service."""
        return f"{self._net}.{number}"

    def enter(self, number: int, folder: Path) -> tuple[str, ...]:
        """Return nothing: a program needs nothing before it."""
        return ()

    def clear(self, number: int) -> None:
        """Leave all as it is: nothing but the pod's own processes runs."""


class Bridge:
    """Connects a namespace per pod, for what can't share ports: Ray. Needs root. Pods have a /tmp/ray each, too."""

    alone = True

    def __init__(self) -> None:
        # Names of links have at most 15 characters.
        self._name = f"{PREFIX}{os.getpid()}"
        self._net = f"10.213.{random.randrange(256)}"
        self._there: set[int] = set()

    def address(self, number: int) -> str:
        """Return the address of a pod, or of a Service."""
        return f"{self._net}.{number + 1}"

    def enter(self, number: int, folder: Path) -> tuple[str, ...]:
        """Return what to put before a command that runs in the pod; make its namespace at the first call."""
        tmp = folder / "tmp-ray"
        if number not in self._there:
            self._there.add(number)
            tmp.mkdir()
            self._join(self._space(number), number)
        bind = 'mkdir -p /tmp/ray && mount --bind "$0" /tmp/ray && exec "$@"'
        return ("ip", "netns", "exec", self._space(number), "unshare", "-m", "sh", "-c", bind, str(tmp))

    def clear(self, number: int) -> None:
        """End whatever still runs in the pod's namespace."""
        if number in self._there:
            _end_all(self._space(number))

    def _space(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _link(self, number: int) -> str:
        return f"{self._name}v{number}"

    def _join(self, space: str, number: int) -> None:
        veth = self._link(number)
        _ip(f"netns add {space}")
        _ip(f"link add {veth} type veth peer name eth0 netns {space}")
        _ip(f"link set {veth} master {self._name} up")
        _ip(f"-n {space} link set lo up")
        _ip(f"-n {space} addr add {self.address(number)}/24 dev eth0")
        _ip(f"-n {space} link set eth0 up")
        _ip(f"-n {space} route add default via {self._net}.1")

    def open(self) -> None:
        """Make the bridge; skips the test where this process may not: no installation gives that right."""
        try:
            _sweep()
            _ip(f"link add {self._name} type bridge")
        except (OSError, subprocess.CalledProcessError) as error:
            reason = f"no network namespaces on this machine ({error}): the chart is NOT tested with real Ray"
            pytest.skip(reason)
        _ip(f"addr add {self._net}.1/24 dev {self._name}")
        _ip(f"link set {self._name} up")

    def close(self) -> None:
        """Take everything away, with what runs there."""
        for number in self._there:
            self.clear(number)
            # A namespace lives on while a process of it ends, and its link with it.
            _ip(f"link del {self._link(number)}")
            _ip(f"netns del {self._space(number)}")
        _ip(f"link del {self._name}")


@contextlib.contextmanager
def bridge() -> Iterator[Bridge]:
    """Run one."""
    made = Bridge()
    made.open()
    try:
        yield made
    finally:
        made.close()


def _sweep() -> None:
    """Take away what tests that were killed left behind."""
    for space in re.findall(rf"^{PREFIX}\d+-\d+", _ip("netns list"), re.MULTILINE):
        bridge_name = space.split("-")[0]
        if not Path(f"/proc/{bridge_name.removeprefix(PREFIX)}").exists():
            _end_all(space)
            _ip(f"netns del {space}")
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(f"link del {bridge_name}")


def _end_all(space: str) -> None:
    for pid in _ip(f"netns pids {space}").split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _ip(words: str) -> str:
    program = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if program is None:
        raise FileNotFoundError("ip")
    return subprocess.run([program, *words.split()], check=True, capture_output=True, text=True).stdout
