"""Each way in which a start fails names its cause and a remedy before Ray is started, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from cluster.bootstrap.redis_server import find_server
from cluster.bootstrap.state_dir import claimed, is_held
from tests.support.certificates import LOOPBACK, Authority
from tests.support.ports import free_port
from tests.support.waiting import until_sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MARK = "START_FAILURE_TEST"
"""Variable that every process of a start inherits."""
MAIN = "import sys; from cluster.cli.main import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class Start:
    """A call of `penstock up`."""

    flags: Sequence[str] = ()
    variables: dict[str, str] = field(default_factory=dict)
    removed: Sequence[str] = ()
    engine: str = "sim"
    state_dir: bool = True
    program: str = MAIN
    wrapper: Sequence[str] = ()


@contextlib.contextmanager
def redis(folder: Path, *options: str, port: int | None = None, tls: Sequence[str] = ()) -> Iterator[int]:
    number = port or free_port()
    ports = ["--port", "0", "--tls-port", str(number), *tls] if tls else ["--port", str(number)]
    command = [find_server(), *ports, "--save", "", "--dir", str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        until_sync(lambda: _listens(number))
        yield number
        server.terminate()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def given(url: str) -> Start:
    return Start(["--redis-url", url])


@contextlib.contextmanager
def wrong_password(folder: Path) -> Iterator[Start]:
    with redis(folder, "--requirepass", "right") as port:
        yield given(f"redis://:w%40rong@127.0.0.1:{port}/0")


@contextlib.contextmanager
def no_password(folder: Path) -> Iterator[Start]:
    with redis(folder, "--requirepass", "right") as port:
        yield given(f"redis://127.0.0.1:{port}/0")


@contextlib.contextmanager
def nobody_listens(folder: Path) -> Iterator[Start]:
    yield given("redis://user:secret@127.0.0.1:1/0")


@contextlib.contextmanager
def unknown_host(folder: Path) -> Iterator[Start]:
    yield given("redis://no-such-host.invalid:6379/0")


@contextlib.contextmanager
def tls_on_a_plain_port(folder: Path) -> Iterator[Start]:
    with redis(folder) as port:
        yield given(f"rediss://127.0.0.1:{port}/0")


def tls_options(folder: Path) -> tuple[list[str], str]:
    authority = Authority()
    certificate, key = authority.issue("redis", *LOOPBACK).write(folder, "redis")
    ca = authority.write(folder)
    files = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", ca]
    return [*files, "--tls-auth-clients", "no"], ca


@contextlib.contextmanager
def plain_on_a_tls_port(folder: Path) -> Iterator[Start]:
    with redis(folder, tls=tls_options(folder)[0]) as port:
        yield given(f"redis://127.0.0.1:{port}/0")


@contextlib.contextmanager
def foreign_certificate(folder: Path) -> Iterator[Start]:
    with redis(folder, tls=tls_options(folder)[0]) as port:
        yield given(f"rediss://127.0.0.1:{port}/0")


@contextlib.contextmanager
def database_99(folder: Path) -> Iterator[Start]:
    with redis(folder) as port:
        yield given(f"redis://127.0.0.1:{port}/99")


def with_rule(folder: Path, *rule: str) -> contextlib.AbstractContextManager[int]:
    return redis(folder, "--user", "app", "on", ">pass", *rule)


@contextlib.contextmanager
def no_keys(folder: Path) -> Iterator[Start]:
    with with_rule(folder, "~other:*", "&*", "+@all") as port:
        yield given(f"redis://app:pass@127.0.0.1:{port}/0")


@contextlib.contextmanager
def no_info(folder: Path) -> Iterator[Start]:
    with with_rule(folder, "~*", "&*", "+@all", "-@dangerous", "-@admin") as port:
        yield given(f"redis://app:pass@127.0.0.1:{port}/0")


@contextlib.contextmanager
def no_channels(folder: Path) -> Iterator[Start]:
    with with_rule(folder, "~*", "resetchannels", "+@all") as port:
        yield given(f"redis://app:pass@127.0.0.1:{port}/0")


@contextlib.contextmanager
def evicts(folder: Path) -> Iterator[Start]:
    with redis(folder, "--maxmemory", "12mb", "--maxmemory-policy", "allkeys-lru") as port:
        yield given(f"redis://127.0.0.1:{port}/0")


@contextlib.contextmanager
def replica_of_nobody(folder: Path) -> Iterator[Start]:
    with redis(folder, "--replicaof", "127.0.0.1", "1") as port:
        yield given(f"redis://127.0.0.1:{port}/0")


@contextlib.contextmanager
def web_server(folder: Path) -> Iterator[Start]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield given(f"redis://127.0.0.1:{server.server_address[1]}/0")
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def silent(folder: Path) -> Iterator[Start]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield given(f"redis://127.0.0.1:{server.getsockname()[1]}/0")


@contextlib.contextmanager
def no_socket(folder: Path) -> Iterator[Start]:
    yield given("unix:///no/such/redis.sock")


@contextlib.contextmanager
def no_program(folder: Path) -> Iterator[Start]:
    yield Start(variables={"PENSTOCK_REDIS__SERVER_BINARY": "/no/such/redis-server"})


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[Start]:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-Urm", "true"], check=False).returncode:
        pytest.skip("this machine gives no name spaces: a full disk is NOT tested")
    disk = folder / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=1m tmpfs {disk} && exec "$@"'
    flags = ["--state-dir", str(disk / "state")]
    yield Start(flags, state_dir=False, wrapper=["unshare", "-Urm", "sh", "-c", mount, "sh"])


@contextlib.contextmanager
def no_home(folder: Path) -> Iterator[Start]:
    nameless = "import pwd\ndef unknown(uid): raise KeyError(uid)\npwd.getpwuid = unknown\n"
    yield Start(removed=["HOME"], state_dir=False, program=nameless + MAIN)


@contextlib.contextmanager
def home_that_is_not_writable(folder: Path) -> Iterator[Start]:
    yield Start(variables={"HOME": "/proc"}, state_dir=False)


@contextlib.contextmanager
def taken_port(folder: Path) -> Iterator[Start]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Start(["--port", str(server.getsockname()[1])])


@contextlib.contextmanager
def taken_folder(folder: Path) -> Iterator[Start]:
    with claimed(folder / "held"):
        yield Start(["--state-dir", str(folder / "held")], state_dir=False)


@contextlib.contextmanager
def dead_ray(folder: Path) -> Iterator[Start]:
    yield Start(variables={"PENSTOCK_CLUSTER__RAY_ADDRESS": "http://127.0.0.1:1"})


def model(folder: Path, **files: str) -> Start:
    path = folder / "model"
    path.mkdir()
    for name, content in files.items():
        (path / name.replace("_json", ".json")).write_text(content, encoding="utf-8")
    return Start(["--model", str(path)], engine="vllm")


@contextlib.contextmanager
def no_model(folder: Path) -> Iterator[Start]:
    yield Start(["--model", "/no/such/model"], engine="vllm")


@contextlib.contextmanager
def no_config(folder: Path) -> Iterator[Start]:
    yield model(folder)


@contextlib.contextmanager
def broken_config(folder: Path) -> Iterator[Start]:
    yield model(folder, config_json="{")


@contextlib.contextmanager
def no_weights(folder: Path) -> Iterator[Start]:
    yield model(folder, config_json=json.dumps({"model_type": "llama"}))


@contextlib.contextmanager
def hub_out_of_reach(folder: Path) -> Iterator[Start]:
    variables = {"HF_ENDPOINT": "http://127.0.0.1:1", "HF_HOME": str(folder / "hub")}
    yield Start(["--model", "some-org/some-model"], variables, ["HF_HUB_CACHE", "HF_HUB_OFFLINE"], engine="vllm")


@contextlib.contextmanager
def hub_forbidden(folder: Path) -> Iterator[Start]:
    variables = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    yield Start(["--model", "some-org/some-model"], variables, ["HF_HUB_CACHE"], engine="vllm")


ROWS: list[tuple[Callable[[Path], contextlib.AbstractContextManager[Start]], str, Sequence[str]]] = [
    (wrong_password, "redis.url", ["does not accept the user name or the password", "percent-encoded"]),
    (no_password, "redis.url", ["wants a password"]),
    (nobody_listens, "redis.url", ["nobody listens at 127.0.0.1:1", "is Redis running"]),
    (unknown_host, "redis.url", ["the host name in no-such-host.invalid:6379 is not known"]),
    (tls_on_a_plain_port, "redis.url", ["answers without TLS", "use redis://"]),
    (plain_on_a_tls_port, "redis.url", ["TLS", "use rediss://"]),
    (foreign_certificate, "redis.url", ["the certificate of", "is not trusted", "?ssl_ca_certs=FILE"]),
    (database_99, "redis.url", ["no database of this number", "0 to 15"]),
    (no_keys, "redis.url", ["the user 'app'", "may not use", "penstock:1:*", "ACL SETUSER app"]),
    (no_info, "redis.url", ["the user 'app'", "may not use INFO, which", "+info"]),
    (no_channels, "redis.url", ["may not use PUBLISH, SUBSCRIBE, which", "&penstock:1:*"]),
    (evicts, "redis.url", ["maxmemory-policy allkeys-lru", "stored jobs", "noeviction", "redis.allow_eviction"]),
    (replica_of_nobody, "redis.url", ["is a replica", "address of the primary"]),
    (web_server, "redis.url", ["what answers at", "is no Redis"]),
    (silent, "redis.url", ["does not answer in time", "firewalls"]),
    (no_socket, "redis.url", ["there is no socket /no/such/redis.sock"]),
    (no_program, "redis did not start", ["redis.server_binary: /no/such/redis-server", "no such program"]),
    (full_disk, "redis did not start", ["the disk of the state folder", "64 MiB are needed", "--state-dir"]),
    (no_home, "cluster.state_dir", ["home folder, which is not known", "set HOME or give --state-dir"]),
    (home_that_is_not_writable, "cluster did not start", ["the state folder /proc/.penstock cannot be used"]),
    (taken_port, "router.port", ["is in use", "--port"]),
    (taken_folder, "cluster did not start", ["already runs one", "penstock down --state-dir"]),
    (dead_ray, "ray serve did not start", ["http://127.0.0.1:1", "Connection refused", "cluster.ray_address"]),
    (no_model, "pools.demo.model", ["there is no folder /no/such/model"]),
    (no_config, "pools.demo.model", ["has no config.json"]),
    (broken_config, "pools.demo.model", ["config.json can't be read", "Expecting property name"]),
    (no_weights, "pools.demo.model", ["has no weights (*.safetensors"]),
    (
        hub_out_of_reach,
        "pools.demo.model",
        ["some-org/some-model", "http://127.0.0.1:1 can't be reached", "HF_ENDPOINT"],
    ),
    (hub_forbidden, "pools.demo.model", ["some-org/some-model", "HF_HUB_OFFLINE is set", "download it beforehand"]),
]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="p", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes that inherited the mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.parametrize(("prepare", "names", "says"), ROWS, ids=[row[0].__name__ for row in ROWS])
def test_a_start_that_fails_names_its_cause_at_once_and_leaves_nothing(
    prepare: Callable[[Path], contextlib.AbstractContextManager[Start]],
    names: str,
    says: Sequence[str],
    tmp_path: Path,
    temporary: Path,
) -> None:
    state, mark = tmp_path / "state", uuid.uuid4().hex
    with prepare(tmp_path) as start:
        environ = {**os.environ, "TMPDIR": str(temporary), MARK: mark, **start.variables}
        flags = ["--state-dir", str(state)] if start.state_dir else []
        port = [] if "--port" in start.flags else ["--port", "0"]
        command = [*start.wrapper, sys.executable, "-c", start.program, "up", "--engine", start.engine]
        ended = subprocess.run(
            [*command, *port, *flags, *start.flags],
            env={name: value for name, value in environ.items() if name not in start.removed},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode in (1, 2), ended.stdout + ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(f"penstock: {names}"), ended.stderr
    assert [] == [word for word in says if word not in last], last
    assert "Traceback" not in ended.stderr
    assert "secret" not in last
    assert "✓ redis ready" not in ended.stdout or prepare is dead_ray
    assert [] == marked(mark)
    assert [] == list(temporary.iterdir())
    assert not (state / "run" / "ray.log").exists(), "Ray was started"
    assert not (state / "run" / "settings.json").exists()
    assert not state.exists() or not is_held(state)


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_what_vllm_says_of_a_models_settings_is_quoted_whole_after_one_start(tmp_path: Path, temporary: Path) -> None:
    start = model(tmp_path, config_json=json.dumps({"hidden_size": 8}))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    state, mark = tmp_path / "state", uuid.uuid4().hex
    flags = ["up", "--engine", "vllm", "--port", "0", "--state-dir", str(state), *start.flags]
    ended = subprocess.run(
        [sys.executable, "-c", MAIN, *flags],
        env={**os.environ, "TMPDIR": str(temporary), MARK: mark},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert 1 == ended.returncode, ended.stderr
    assert "penstock: pool demo did not start: vLLM did not start: " in ended.stderr
    assert "model_type" in ended.stderr
    assert f"log: {state / 'run' / 'ray.log'}" in ended.stderr
    assert "failed:" not in ended.stdout, "it was tried again"
    assert "loading vLLM" in ended.stdout
    until_sync(lambda: marked(mark) == [])
    assert [] == list(temporary.iterdir())


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_demo_that_is_stopped_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "demo", "--engine", "sim"],
        env={**os.environ, "TMPDIR": str(temporary), MARK: mark},
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        while "redis ready" not in demo.stdout.readline():
            assert demo.poll() is None
        assert any(temporary.iterdir())
        demo.terminate()
        demo.stdout.read()
    assert 143 == demo.returncode
    until_sync(lambda: marked(mark) == [])
    assert [] == list(temporary.iterdir())
