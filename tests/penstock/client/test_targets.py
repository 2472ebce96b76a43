"""An address that gRPC would take for something else is refused with the right one."""

from __future__ import annotations

import pytest

from penstock import AsyncClient, Client, Tls
from penstock.client.targets import checked_targets


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("http://127.0.0.1:56051", "targets: must be host:port, without http://, got 'http://127.0.0.1:56051': "
         "write '127.0.0.1:56051'"),
        ("https://router.example.org:50051/v1", "write 'router.example.org:50051' with tls=Tls()"),
        ("grpc://a:1", "without grpc://"),
        ("a:1/v1", "without a path or spaces, got 'a:1/v1'"),
        (" a:1", "without a path or spaces, got ' a:1'"),
        ("localhost", "targets: must be host:port, such as localhost:50051, got 'localhost'"),
        ("localhost:", "such as localhost:50051"),
        ("a:http", "such as a:50051"),
        ("[::1]", r"such as [::1]:50051"),
        ("::1", "targets: must be host:port, such as [::1]:50051, got '::1'"),
        ("a:0", "targets: a port must be 1 to 65535, got 'a:0'"),
        ("a:65536", "targets: a port must be 1 to 65535"),
        ("dns:///a:150051", "targets: a port must be 1 to 65535"),
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_one_that_is(target: str, told: str) -> None:
    for client in (Client, AsyncClient):
        with pytest.raises(ValueError, match="target") as error:
            client(["a:1", target])
        assert told in str(error.value)


@pytest.mark.parametrize(
    "target",
    [
        "a:1",
        "127.0.0.1:50051",
        "[::1]:50051",
        "dns:a:1",
        "dns:///routers.example.org:1",
        "ipv4:127.0.0.1:1,127.0.0.2:1",
        "unix:/tmp/x",
        "unix:///tmp/x",
        "unix-abstract:x",
    ],
)
def test_what_grpc_takes_is_left_to_it(target: str) -> None:
    assert (target,) == checked_targets(target, tls=False)


def test_with_tls_a_host_alone_is_its_port_443() -> None:
    assert ("router.example.org",) == checked_targets("router.example.org", tls=True)
    Client("router.example.org", tls=Tls()).close()
