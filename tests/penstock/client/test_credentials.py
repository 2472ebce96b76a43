"""Keys: sent with every attempt, never in the clear to another machine, and never shown."""

from __future__ import annotations

import traceback
from typing import Any

import grpc
import pytest

from cluster.errors import PermissionDeniedError as Denied
from cluster.errors import QueueFullError
from cluster.errors import UnauthenticatedError as Unknown
from penstock.client import Client, PermissionDeniedError, Tls, UnauthenticatedError
from penstock.client.connection import Access, Connection
from penstock.client.credentials import is_local
from tests.penstock.client.fake_router import FakeRouter, serving
from tests.support.certificates import LOOPBACK, Authority

KEY = "psk_0123456789abcdef_" + "5" * 64


async def test_a_key_goes_with_every_attempt_beside_other_metadata(connect: Any, port: int, fake: FakeRouter) -> None:
    fake.failures.extend([QueueFullError("demo", 1, 0.0), None])
    client = connect(f"127.0.0.1:{port}", api_key=KEY, metadata=lambda: [("x-trace", "t")])
    await client.count_tokens("demo", "one")
    async with client.stream("demo", "x") as stream:
        async for _ in stream:
            pass

    sent = [(one["authorization"], one["x-trace"]) for one in fake.metadata]
    assert [(f"Bearer {KEY}", "t")] * 3 == sent


async def test_a_key_may_change_between_attempts(connect: Any, port: int, fake: FakeRouter) -> None:
    fake.failures.append(QueueFullError("demo", 1, 0.0))
    keys = iter(["a", "b"])
    await connect(f"127.0.0.1:{port}", api_key=lambda: next(keys)).count_tokens("demo", "one")

    assert ["Bearer a", "Bearer b"] == [one["authorization"] for one in fake.metadata]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Unknown("the API key is not known"), UnauthenticatedError),
        (Denied("acme", "model", "demo", []), PermissionDeniedError),
    ],
)
async def test_refusals_have_classes_and_are_not_tried_again(
    connect: Any, port: int, fake: FakeRouter, failure: Exception, expected: type[Exception]
) -> None:
    fake.failures.append(failure)
    with pytest.raises(expected) as caught:
        await connect(f"127.0.0.1:{port}").count_tokens("demo", "one")

    assert (str(failure), 1) == (str(caught.value), len(fake.metadata))


@pytest.mark.parametrize("bad", ["", "a b", "a\n", "schlüssel", "\x00"])
@pytest.mark.parametrize("late", [False, True])
async def test_a_key_that_can_not_be_sent_is_refused_and_not_shown(
    connect: Any, port: int, fake: FakeRouter, bad: str, late: bool
) -> None:
    text = f"{KEY}{bad}" if bad else bad
    with pytest.raises(ValueError, match="must be printable ASCII") as caught:
        await connect(f"127.0.0.1:{port}", api_key=(lambda: text) if late else text).count_tokens("demo", "one")

    assert (False, []) == (KEY in "".join(traceback.format_exception_only(caught.value)), fake.metadata)


@pytest.mark.parametrize(
    ("name", "value"),
    [("authorization", f"Bearer {KEY}\n"), ("x", f"{KEY}ü"), ("X-Trace", KEY), ("", KEY), (":x", KEY)],
)
async def test_metadata_that_can_not_be_sent_is_refused_by_name_and_not_shown(
    connect: Any, port: int, fake: FakeRouter, name: str, value: str
) -> None:
    """Such as a token that was read from a file with its line end."""
    client = connect(f"127.0.0.1:{port}", metadata=lambda: [("fine", "a b"), ("fine-bin", b"\n\xff"), (name, value)])
    for call in (client.count_tokens("demo", "one"), anext(aiter(client.stream("demo", "x")))):
        with pytest.raises(ValueError, match=f"'{name}'") as caught:
            await call

        assert (False, []) == (KEY in "".join(traceback.format_exception_only(caught.value)), fake.metadata)


def test_a_key_does_not_show() -> None:
    connection = Connection.build("localhost:1", Access(api_key=KEY), None, None, ())

    assert KEY not in repr(connection) + repr(Access(api_key=KEY)) + repr(connection.credentials)


@pytest.mark.parametrize("target", ["10.0.0.1:1", "router.example.org:50051", "dns:///localhost.evil:1"])
def test_a_key_never_crosses_the_network_in_the_clear_unasked(target: str) -> None:
    with pytest.raises(ValueError, match=rf"in the clear to {target}: .*allow_plaintext_key") as caught:
        Client(["127.0.0.1:1", target], api_key=KEY)
    assert KEY not in str(caught.value)
    for allowed in ({"tls": Tls()}, {"allow_plaintext_key": True}):
        Client(target, api_key=KEY, **allowed).close()
    # Without a key there is nothing to protect.
    Client(target).close()


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("127.0.0.1:50051", True),
        ("127.8.8.8", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("::1", True),
        ("ipv6:[::1]:1", True),
        ("ipv4:127.0.0.1:1,127.0.0.2:1", True),
        ("ipv4:127.0.0.1:1,10.0.0.1:1", False),
        ("dns:localhost:1", True),
        ("dns:///localhost:1", True),
        ("dns://8.8.8.8/localhost:1", True),
        ("unix:/run/router.sock", True),
        ("[::]:1", False),
        ("0.0.0.0:1", False),
        ("localhost.example.org:1", False),
        ("xds:///router", False),
        ("", False),
    ],
)
def test_is_local(target: str, expected: bool) -> None:
    assert expected is is_local(target)


async def test_what_is_here_is_not_called_through_a_proxy(
    connect: Any, port: int, fake: FakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many machines name one for the way out, and a key in the clear would go to it."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    await connect([f"127.0.0.1:{port}", f"localhost:{port}"], api_key=KEY).count_tokens("demo", "one")

    assert [f"Bearer {KEY}"] == [one["authorization"] for one in fake.metadata]


async def test_a_key_travels_over_tls(connect: Any, fake: FakeRouter) -> None:
    authority = Authority()
    pair = authority.issue("router", *LOOPBACK)
    credentials = grpc.ssl_server_credentials([(pair.key, pair.certificate)])
    async with serving(fake, credentials=credentials) as port:
        client = connect(f"127.0.0.1:{port}", tls=Tls(authority.pem), api_key=KEY)
        await client.count_tokens("demo", "one")
        await client.close()

    assert [f"Bearer {KEY}"] == [one["authorization"] for one in fake.metadata]
