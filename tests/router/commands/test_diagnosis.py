"""What a command says when it does not reach a router: the cause, and what to do about it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import grpc
import pytest

from cluster.cli.main import main
from router.commands.diagnosis import Tried, diagnose
from tests.support.certificates import LOOPBACK, Authority, dns
from tests.support.ports import free_port

Captured = pytest.CaptureFixture[str]
GENERIC = "failed to connect to all addresses"

AUTHORITY, OTHER = Authority(), Authority("other")
HERE, ELSEWHERE = AUTHORITY.issue("here", *LOOPBACK), AUTHORITY.issue("elsewhere", dns("router.example.com"))


@contextmanager
def serving(credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    """Run a gRPC server without services. Return its host:port."""
    server = grpc.server(ThreadPoolExecutor(1))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()


def test_nothing_that_listens() -> None:
    target = f"127.0.0.1:{free_port()}"
    assert diagnose(Tried(target), GENERIC).startswith("nothing listens there; `penstock up` starts a cluster here")
    assert diagnose(Tried(target, tls=True), GENERIC).startswith("nothing listens there")


def test_a_host_that_does_not_exist() -> None:
    assert diagnose(Tried("no-such-host.invalid:1"), GENERIC).startswith("there is no host no-such-host.invalid: ")


def test_a_router_with_tls_that_is_called_without() -> None:
    with serving(grpc.ssl_server_credentials([(HERE.key, HERE.certificate)])) as target:
        assert "the router speaks TLS: give --tls-ca FILE" in diagnose(Tried(target), GENERIC)


@pytest.mark.parametrize(
    ("tried", "said"),
    [
        ({"ca": OTHER.pem}, "the router's certificate does not come from the authorities in --tls-ca ("),
        ({}, "the router's certificate does not come from the public authorities ("),
        ({"ca": b"no certificate"}, "--tls-ca has no certificate in PEM"),
        (
            {"ca": AUTHORITY.pem, "server_name": "a.example"},
            "the router's certificate is not for a.example; --tls-server",
        ),
        ({"ca": AUTHORITY.pem}, ""),
    ],
)
def test_a_certificate_that_does_not_fit(tried: dict[str, object], said: str) -> None:
    with serving(grpc.ssl_server_credentials([(HERE.key, HERE.certificate)])) as target:
        found = diagnose(Tried(target, tls=True, **tried), GENERIC)  # type: ignore[arg-type]
    assert found.startswith(said)
    assert said or not found


@pytest.mark.parametrize(("days", "why"), [(-40, "certificate has expired"), (40, "certificate is not yet valid")])
def test_a_certificate_whose_time_is_not_now(days: int, why: str) -> None:
    pair = AUTHORITY.issue("here", *LOOPBACK, days=days)
    with serving(grpc.ssl_server_credentials([(pair.key, pair.certificate)])) as target:
        found = diagnose(Tried(target, tls=True, ca=AUTHORITY.pem), GENERIC)
    # Newer versions of OpenSSL say more.
    assert re.fullmatch(rf"the router's certificate is not valid now \({why}.*\); its operator can renew it", found)


def test_a_certificate_of_another_host() -> None:
    with serving(grpc.ssl_server_credentials([(ELSEWHERE.key, ELSEWHERE.certificate)])) as target:
        found = diagnose(Tried(target, tls=True, ca=AUTHORITY.pem), GENERIC)
    assert found.startswith("the router's certificate is not for 127.0.0.1")


def test_a_router_that_asks_for_a_certificate() -> None:
    credentials = grpc.ssl_server_credentials([(HERE.key, HERE.certificate)], AUTHORITY.pem, True)
    with serving(credentials) as target:
        found = diagnose(Tried(target, tls=True, ca=AUTHORITY.pem), GENERIC)
    assert "the router asks for a client certificate: give --tls-cert and --tls-key" == found


def test_a_router_without_tls_that_is_called_with_it() -> None:
    with serving() as target:
        found = diagnose(Tried(target, tls=True), GENERIC)
    assert "the router does not speak TLS: leave the --tls flags out" == found


def test_a_router_that_can_be_reached_is_not_blamed() -> None:
    with serving() as target:
        assert "" == diagnose(Tried(target), GENERIC)


@pytest.mark.parametrize("target", ["unix:/tmp/x", "dns:///a:1", "a:1,b:2", "ipv4:1.2.3.4:5"])
def test_other_forms_of_a_target_are_left_alone(target: str) -> None:
    assert "" == diagnose(Tried(target), GENERIC)


class Page(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.slow
def test_a_port_of_http(capsys: Captured) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        assert 1 == main(["status", "--target", f"127.0.0.1:{server.server_address[1]}"])
        server.shutdown()
        thread.join()
    assert "this port speaks HTTP and not gRPC" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("scheme", ["http", "https", "grpc", "HTTP"])
def test_a_web_address_is_no_target(scheme: str, capsys: Captured) -> None:
    assert 2 == main(["status", "--target", f"{scheme}://127.0.0.1:50051/"])
    said = capsys.readouterr().err
    assert f"--target: must be host:port, without {scheme}://, got " in said
    assert "write '127.0.0.1:50051'" in said


@pytest.mark.slow
def test_a_failed_handshake_is_one_line_without_the_log_of_grpc(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cluster.cli.main", "status", "--tls-ca", OTHER.write(tmp_path), "--target"]
    with serving(grpc.ssl_server_credentials([(HERE.key, HERE.certificate)])) as target:
        done = subprocess.run([*command, target], capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("waiting ")]
    assert 1 == done.returncode
    assert 1 == len(lines), done.stderr
    assert lines[0].startswith(f"penstock: {target} is not available: the router's certificate does not come from the")
