"""The embedded Redis may take long to read its file, but not to say so."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
import redis.asyncio

from cluster.bootstrap import redis_server
from cluster.bootstrap.redis_server import EmbeddedRedis, find_server
from cluster.errors import BootstrapError
from tests.cluster.queue.servers import read_program

pytestmark = pytest.mark.slow

SERVER = """
import asyncio, sys, time
path, loading, speaks_s = sys.argv[sys.argv.index("--unixsocket") + 1], {loading}, {speaks_s}
began = time.monotonic()

async def serve(reader, writer):
    global loading
    while line := await reader.readline():
        if not line.startswith(b"*"):
            continue
        words = []
        for _ in range(int(line[1:])):
            await reader.readline()
            words.append((await reader.readline()).strip().upper())
        at = time.monotonic() - began
        if at > speaks_s:
            continue
        if words[0] == b"HELLO":
            writer.write(b"%1\\r\\n$5\\r\\nproto\\r\\n:3\\r\\n")
        elif words[0] != b"PING":
            writer.write(b"+OK\\r\\n")
        elif loading:
            loading -= 1
            writer.write(b"-LOADING Redis is loading the dataset in memory\\r\\n")
        else:
            writer.write(b"+PONG\\r\\n")
        await writer.drain()

async def main():
    server = await asyncio.start_unix_server(serve, path)
    await server.serve_forever()

asyncio.run(main())
"""
"""Says so many times that it reads its file, and speaks for some seconds."""
FOR_EVER = 1_000_000_000


def script(folder: Path, text: str) -> str:
    """Write a program that can stand for redis-server."""
    path = folder / "redis-server"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)
    return str(path)


def server(folder: Path, loading: int, speaks_s: float = 3600.0) -> str:
    return script(folder, f"#!{sys.executable}\n{SERVER.format(loading=loading, speaks_s=speaks_s)}")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon. Only for servers that never answer: a busy machine starts the others late."""
    monkeypatch.setattr(redis_server, "START_TIMEOUT_S", 1.5)


class Ahead:
    """Clock of the event loop that goes ahead, so that a test waits for no time-out, and no busy machine is late."""

    def __init__(self) -> None:
        self.jumps_s: list[float] = []
        loop = asyncio.get_running_loop()
        loop.time = lambda: time.monotonic() + sum(self.jumps_s)  # type: ignore[method-assign]

    def jump(self, seconds: float, most: int = 1) -> None:
        """Go ahead, unless it did so `most` times."""
        if len(self.jumps_s) < most:
            self.jumps_s.append(seconds)


async def test_a_server_that_reads_its_file_for_long_is_waited_for(tmp_path: Path) -> None:
    clock, near = Ahead(), redis_server.START_TIMEOUT_S - 5.0
    started = await EmbeddedRedis.start(
        tmp_path, tmp_path / "log", server(tmp_path, loading=5), lambda: clock.jump(near, most=4)
    )
    assert sum(clock.jumps_s) > redis_server.START_TIMEOUT_S
    await started.stop()


@pytest.mark.usefixtures("short")
async def test_a_server_that_falls_silent_while_it_reads_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match="no answer within"):
        await EmbeddedRedis.start(tmp_path, tmp_path / "log", server(tmp_path, FOR_EVER, speaks_s=1.0))


async def test_a_server_that_reads_for_ever_is_given_up(tmp_path: Path) -> None:
    clock = Ahead()
    with pytest.raises(BootstrapError, match="still reads its file after 300 s"):
        await EmbeddedRedis.start(
            tmp_path, tmp_path / "log", server(tmp_path, FOR_EVER), lambda: clock.jump(redis_server.LOAD_TIMEOUT_S)
        )


@pytest.mark.usefixtures("short")
async def test_a_server_that_never_listens_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match="no answer within"):
        await EmbeddedRedis.start(tmp_path, tmp_path / "log", script(tmp_path, "#!/bin/sh\nexec sleep 600\n"))


async def test_a_long_file_of_a_real_server_is_read_to_its_end(tmp_path: Path) -> None:
    # It looks at its connections once per 1024 entries, and a client needs a few such looks to be told.
    entries = 40_000
    state = tmp_path / "state"
    first = await EmbeddedRedis.start(state, tmp_path / "log")
    # It holds prompts of jobs.
    assert 0o700 == (state / "redis").stat().st_mode & 0o777
    client = redis.asyncio.Redis.from_url(first.url)
    async with client.pipeline(transaction=False) as pipeline:
        for number in range(entries):
            pipeline.set(f"key-{number}", "value")
        await pipeline.execute()
    await client.aclose()
    await first.stop()
    # A setting for tests of Redis itself: microseconds per entry of the file.
    slow = f'#!/bin/sh\nexec {shlex.quote(find_server())} "$@" --key-load-delay 100\n'

    clock, near = Ahead(), redis_server.START_TIMEOUT_S - 8.0
    second = await EmbeddedRedis.start(
        state, tmp_path / "log", script(tmp_path, slow), lambda: clock.jump(near, most=2)
    )

    assert sum(clock.jumps_s) > redis_server.START_TIMEOUT_S, "it was no long file"
    client = redis.asyncio.Redis.from_url(second.url)
    assert entries == await asyncio.wait_for(client.dbsize(), 60)
    await client.aclose()
    await second.stop()


async def test_a_server_that_is_too_old_for_the_file_is_not_started(tmp_path: Path) -> None:
    """It would start empty."""
    state = tmp_path / "state"
    first = await EmbeddedRedis.start(state, tmp_path / "log")
    client = redis.asyncio.Redis.from_url(first.url)
    await client.set("job", "accepted")
    await client.aclose()
    await first.stop()
    old = '#!/bin/sh\necho "Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64 build=0"\n'

    with pytest.raises(BootstrapError, match=r"version 6\.2\.14 of .*/appendonlydir was written by 7\.0 or newer"):
        await EmbeddedRedis.start(state, tmp_path / "log", script(tmp_path, old))

    second = await EmbeddedRedis.start(state, tmp_path / "log")
    client = redis.asyncio.Redis.from_url(second.url)
    assert b"accepted" == await client.get("job")
    await client.aclose()
    await second.stop()


async def test_a_program_that_is_not_there_leaves_no_folder_for_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    with pytest.raises(BootstrapError, match="no such program"):
        await EmbeddedRedis.start(tmp_path, tmp_path / "redis.log", "redis-server-that-is-not-there")

    assert [] == list(temporary.iterdir())


def sockets_folders(folder: Path) -> list[Path]:
    return list(folder.glob("penstock-redis-*"))


async def test_the_next_start_removes_the_sockets_folders_whose_owner_is_gone(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a killed `penstock up` one stayed, each time."""
    # A short name: the folder of this test's name is too long for sockets where many runs came before.
    tmp_path = tmp_path_factory.mktemp("s")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "from cluster.bootstrap.redis_server import EmbeddedRedis\n"
        "async def main():\n"
        "    state = Path(sys.argv[1])\n"
        "    await EmbeddedRedis.start(state, state / 'log')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", text, str(tmp_path / "killed")), env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert -signal.SIGKILL == await killed.wait()
    (left,) = sockets_folders(tmp_path)
    strange = tmp_path / "penstock-redis-of-an-older-release"
    strange.mkdir()

    first = await EmbeddedRedis.start(tmp_path / "first", tmp_path / "log")
    second = await EmbeddedRedis.start(tmp_path / "second", tmp_path / "log")

    assert not left.exists()
    # Nobody can say whose this is; and the first server's has an owner.
    assert strange.exists()
    assert 3 == len(sockets_folders(tmp_path))
    for server in (first, second):
        client = redis.asyncio.Redis.from_url(server.url)
        assert await client.ping()
        await client.aclose()
        await server.stop()
    assert [strange] == sockets_folders(tmp_path)


async def test_an_odd_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its letters are escaped in the address."""
    temporary = tmp_path / "%41#?"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    server = await EmbeddedRedis.start(tmp_path / "state", tmp_path / "log")

    client = redis.asyncio.Redis.from_url(server.url)
    assert await client.ping()
    await client.aclose()
    await server.stop()


UNREADABLE = """#!/bin/sh
[ "$1" = --version ] && echo "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0" && exit
echo "Bad file format: make a backup of your AOF file, then use redis-check-aof --fix"
exit 1
"""


async def test_files_that_another_server_wrote_are_named_as_the_cause(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / redis_server.WRITER).write_text("Valkey 9.1.2\n", encoding="utf-8")
    with pytest.raises(BootstrapError) as failed:
        await EmbeddedRedis.start(tmp_path, tmp_path / "log", script(tmp_path, UNREADABLE))
    assert "Redis 7.0.15 may not read what Valkey 9.1.2 wrote: set redis.server_binary" in str(failed.value)


@pytest.mark.parametrize("writer", ["", "Redis 7.0.15"])
async def test_a_server_that_fails_on_files_of_its_own_says_why_itself(tmp_path: Path, writer: str) -> None:
    (tmp_path / "redis").mkdir()
    if writer:
        (tmp_path / "redis" / redis_server.WRITER).write_text(f"{writer}\n", encoding="utf-8")
    with pytest.raises(BootstrapError, match="Bad file format") as failed:
        await EmbeddedRedis.start(tmp_path, tmp_path / "log", script(tmp_path, UNREADABLE))
    assert "may not read" not in str(failed.value)


@pytest.mark.slow
async def test_the_writer_of_the_files_is_noted(tmp_path: Path) -> None:
    program = read_program(find_server())
    started = await EmbeddedRedis.start(tmp_path, tmp_path / "log")
    await started.stop()
    assert program is not None
    assert f"{program.name} {'.'.join(map(str, program.version))}" == redis_server._read_writer(tmp_path / "redis")


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_a_server_on_the_path_comes_before_the_one_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    program = tmp_path / name
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert str(program) == find_server()
