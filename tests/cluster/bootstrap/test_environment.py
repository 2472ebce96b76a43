"""The user's shell is not our configuration: neither its variables, nor its folders, nor the end of its terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.bootstrap.local_ray import foreign_variables, ray_environment
from cluster.bootstrap.ray_host import LOGICAL_CPUS
from cluster.bootstrap.socket_dir import RAY, REDIS, SocketDir
from cluster.errors import BootstrapError
from cluster.ray_serve.config import actor_options
from cluster.settings import PoolSettings
from cluster.short_folders import LONGEST_PATH, short_folder
from penstock.client import Client, Delta, Sampling
from tests.cluster.bootstrap.test_start_failures import MAIN, MARK, marked
from tests.support.waiting import until_sync


def test_variables_in_capitals_stay_away_from_a_local_ray_and_those_that_tune_it_stay() -> None:
    shell = {"RAY_ADDRESS": "auto", "RAY_AUTH_TOKEN": "x", "RAY_memory_monitor_refresh_ms": "0", "PATH": "/bin"}
    changes = ray_environment(shell, Path("/t"), Path("/s/token"))
    assert (None, None) == (changes["RAY_ADDRESS"], changes["RAY_AUTH_TOKEN"])
    assert not {"RAY_memory_monitor_refresh_ms", "PATH"} & changes.keys()
    assert ("token", "/s/token", "/t") == tuple(
        changes[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "TMPDIR")
    )
    assert ["RAY_ADDRESS", "RAY_AUTH_TOKEN"] == foreign_variables(shell)


def test_replicas_of_pools_that_are_added_later_fit_on_any_machine() -> None:
    """Many pools, each with a replica in place of any other. Ray starts no worker for each CPU that it is told of."""
    largest = PoolSettings(engine="vllm", tensor_parallel_size=64, replicas=1024)
    assert 50 * 2 * largest.replicas * actor_options(largest, 0)["num_cpus"] < LOGICAL_CPUS
    assert "0" == ray_environment({}, Path("/t"), Path("/s/token"))["RAY_prestart_worker_first_driver"]


@pytest.fixture
def temporary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files with a path of so many characters."""
    base = Path(tempfile.mkdtemp(prefix="p", dir="/tmp"))
    folder = base / ("x" * (request.param - len(str(base)) - 1))
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(base)


@pytest.mark.parametrize("temporary", [17, 60, 103], indirect=True)
def test_sockets_fit_wherever_temporary_files_go(temporary: Path) -> None:
    for prefix, name in (
        (REDIS, "redis.sock"),
        (RAY, "session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"),
    ):
        folder = SocketDir(prefix, name)
        path = folder.path / name
        assert len(os.fsencode(path)) <= LONGEST_PATH
        assert (folder.path.parent == temporary) is (
            len(str(temporary)) < 22 or (prefix == REDIS and len(str(temporary)) < 70)
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
        folder.remove()
        assert not folder.path.exists()


def test_a_folder_that_is_too_long_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", f"/{'x' * 90}")
    monkeypatch.setattr("cluster.short_folders._OTHERS", ())
    with pytest.raises(OSError, match=r"TMPDIR: /x+ is too long for sockets.* set it to 57 bytes"):
        short_folder(50)
    with pytest.raises(
        BootstrapError, match=r"redis did not start: no folder for its sockets: TMPDIR: /x+ is too long"
    ):
        SocketDir(REDIS, "redis.sock")


HANGS_UP = """
import asyncio, signal, sys
from cluster.lifecycle import stop_signals
async def main():
    stop = asyncio.Event()
    with stop_signals(stop.set):
        print("ready", flush=True)
        await stop.wait()
        print("draining", flush=True)
    open(sys.argv[1], "w").close()
asyncio.run(main())
"""


@pytest.mark.slow
def test_the_end_of_the_terminal_is_a_request_to_stop(tmp_path: Path) -> None:
    drained = tmp_path / "drained"
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover - another process
        # Under `nohup` it would ignore it, as is right.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, "-c", HANGS_UP, str(drained)])  # noqa: S606 - a child of a pty
    said = b""
    # The whole line: a write that the end of the terminal cuts short fails.
    while b"\n" not in said:
        said += os.read(terminal, 1_000)
    os.close(terminal)
    assert 0 == os.waitpid(pid, 0)[1]
    assert drained.exists()


@pytest.mark.slow
def test_what_nohup_started_survives_the_end_of_the_terminal(tmp_path: Path) -> None:
    drained = tmp_path / "drained"
    command = ["nohup", sys.executable, "-c", HANGS_UP, str(drained)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.terminate()
        assert 0 == process.wait(60.0)
    assert drained.exists()


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_cluster_comes_up_in_a_hostile_shell_drains_at_the_end_of_the_terminal_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    base = Path(tempfile.mkdtemp(prefix="p", dir="/tmp"))
    temporary = base / ("x" * (103 - len(str(base)) - 1))
    temporary.mkdir()
    before = folders_of_sockets()
    nameless = "import pwd\ndef unknown(uid): raise KeyError(uid)\npwd.getpwuid = unknown\n"
    hostile = {
        "TMPDIR": str(temporary),
        "RAY_ADDRESS": "http://127.0.0.1:1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_NAMESPACE": "theirs",
        "RAY_TMPDIR": "/no/such/folder",
        "LC_ALL": "C",
        "TZ": "Nowhere/Odd",
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "grpc_proxy"), "http://127.0.0.1:1"),
        MARK: tmp_path.name,
    }
    state = tmp_path / "stäte dir %1 #x"
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover - another process
        # Under `nohup` it would ignore it, as is right.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.environ.update(hostile)
        os.environ.pop("HOME", None)
        os.umask(0o077)
        flags = ["up", "--engine", "sim", "--ray", "--state-dir", str(state), "--port", "0"]
        os.execv(sys.executable, [sys.executable, "-c", nameless + MAIN, *flags])  # noqa: S606 - a child of a pty
    said = read_until(terminal, "serving")
    found = re.search(r"on (127\.0\.0\.1:\d+)", said)
    assert found is not None, said
    assert "RAY_ADDRESS" in said
    token = state / "run" / "ray-token"
    assert 0o600 == stat.S_IMODE(token.stat().st_mode)
    stream = iter(Client(found[1]).stream("demo", "héllo", Sampling(max_tokens=400, ignore_eos=True), timeout=60))
    while not isinstance(next(stream), Delta):
        pass

    os.close(terminal)

    assert "Finished" == [type(event).__name__ for event in stream][-1], "the stream was cut"
    assert 0 == os.waitpid(pid, 0)[1]
    until_sync(lambda: marked(tmp_path.name) == [])
    assert [] == list(temporary.iterdir())
    until_sync(lambda: folders_of_sockets() <= before)
    assert not token.exists()
    shutil.rmtree(base)


def folders_of_sockets() -> set[Path]:
    """Other tests beside this one have some too, for a while."""
    folder = Path("/tmp")  # noqa: S108 - where a cluster goes whose TMPDIR is too long
    return {*folder.glob(f"{RAY}*"), *folder.glob(f"{REDIS}*")}


def read_until(terminal: int, word: str, seconds: float = 400.0) -> str:
    """Read what a process prints until a word comes, its output ends or the time is over."""
    text, until = "", time.monotonic() + seconds
    while word not in text and time.monotonic() < until:
        with contextlib.suppress(OSError):
            if piece := os.read(terminal, 10_000).decode(errors="replace"):
                text += piece
                continue
        break
    # The rest of the line, and the lines after it, if they have not come yet. A read would wait for more.
    while select.select([terminal], [], [], 1.0)[0]:
        try:
            text += os.read(terminal, 10_000).decode(errors="replace")
        except OSError:
            break
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
