"""From credentials to callers."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cluster.clock import ManualClock
from cluster.errors import SettingsError, TooManyAttemptsError, UnauthenticatedError
from cluster.settings import load_settings
from penstock.models import RequestClass
from router.identity import ANONYMOUS, Authenticator, Caller, Role
from router.identity.caller import Credential, CredentialKind
from router.identity.key import mint_key
from router.identity.new_key import KeyPlan, add_key

NOW = datetime(2026, 6, 1, tzinfo=UTC)


class Call:
    """A call's context."""

    def __init__(self, *metadata: tuple[str, str], **connection: bytes) -> None:
        self._metadata = metadata
        self._connection = {name: [value] for name, value in connection.items()}

    def invocation_metadata(self) -> Any:
        return self._metadata

    def auth_context(self) -> Any:
        return self._connection

    def peer_address(self) -> str:
        return "192.0.2.1"


def with_key(key: str) -> Call:
    return Call(("user-agent", "x"), ("authorization", f"Bearer {key}"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(NOW.timestamp() * 1000))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


@pytest.fixture
def build(path: Path, clock: ManualClock) -> Callable[..., Authenticator]:
    def build(**auth: Any) -> Authenticator:
        fields = {"keys_file": str(path), **auth}
        return Authenticator(load_settings(flags={"auth": fields}, environ={}), clock=clock)

    return build


def refusal(authenticator: Authenticator, call: Call) -> str:
    with pytest.raises(UnauthenticatedError) as caught:
        authenticator(call)
    return str(caught.value)


def test_a_key_tells_who_calls_and_what_that_one_may_do(path: Path, build: Callable[..., Authenticator]) -> None:
    narrow = add_key(path, KeyPlan("acme", "operator", ("demo",), ("batch",)))
    wide = add_key(path, KeyPlan("other"))
    authenticator = build()

    assert Caller("acme", Role.OPERATOR, frozenset({"demo"}), frozenset({RequestClass.BATCH})) == authenticator(
        with_key(narrow)
    )
    assert Caller("other", Role.USER, None, None) == authenticator(with_key(wide))
    assert Caller("other") == authenticator(Call(("authorization", f"bearer  {wide} ")))


def test_wrong_keys_are_refused_without_a_hint_which_part_is_wrong(
    path: Path, build: Callable[..., Authenticator], caplog: pytest.LogCaptureFixture
) -> None:
    key = add_key(path, KeyPlan("acme"))
    authenticator = build()
    wrong = [mint_key(), key[:-1] + ("0" if key[-1] != "0" else "1"), mint_key()[:21] + key[21:], "psk_x", "x" * 9_000]
    with caplog.at_level(logging.DEBUG):
        refusals = {refusal(authenticator, with_key(one)) for one in wrong}

    assert {"the API key is not known"} == refusals
    assert not [record for record in caplog.records if any(one[-20:] in record.getMessage() for one in wrong)]


@pytest.mark.parametrize("text", ["psk_\udcff", "eyJ\udcff.a.b", "psk_\u2026"], ids=["bytes", "token", "text"])
def test_a_key_with_other_characters_than_ascii_is_a_wrong_key(
    path: Path, build: Callable[..., Authenticator], text: str
) -> None:
    """HTTP headers may have any bytes. Somebody who pastes a key may paste a dash or a quote with it."""
    add_key(path, KeyPlan("acme"))
    authenticator = build(failures_per_minute=1)

    assert "the API key is not known: no key or token has other characters than ASCII" == refusal(
        authenticator, with_key(text)
    )
    with pytest.raises(TooManyAttemptsError):
        authenticator(with_key(text))


@pytest.mark.parametrize("known", [True, False])
def test_a_known_and_an_unknown_id_cost_the_same_work(
    path: Path, build: Callable[..., Authenticator], monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """One hash and one comparison of 64 characters in constant time, whatever the key."""
    key = add_key(path, KeyPlan("acme"))
    authenticator = build()
    work: list[tuple[str, int, int]] = []
    compare, digest = hmac.compare_digest, hashlib.sha256
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: work.append(("compare", len(a), len(b))) or compare(a, b))
    monkeypatch.setattr("hashlib.sha256", lambda data: work.append(("hash", len(data), 0)) or digest(data))
    refusal(authenticator, with_key(key[:-4] + "0000" if known else mint_key()))

    assert [("hash", len(key), 0), ("compare", 64, 64)] == work


def test_the_times_of_keys_overlap_for_rotation(
    path: Path, build: Callable[..., Authenticator], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    old = add_key(path, KeyPlan("acme", expires=NOW + timedelta(hours=2)))
    new = add_key(path, KeyPlan("acme", not_before=NOW + timedelta(hours=1)))
    authenticator = build()

    assert ("acme", "the API key is not valid yet") == (
        authenticator(with_key(old)).tenant,
        refusal(authenticator, with_key(new)),
    )
    clock.advance(3600)
    assert ["acme", "acme"] == [authenticator(with_key(key)).tenant for key in (old, new)]
    clock.advance(3600)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert "the API key is expired" == refusal(authenticator, with_key(old))
    assert "acme" == authenticator(with_key(new)).tenant
    # Whoever forgot the rotation can be found by the key's public part.
    assert [("auth.refused", old[4:20])] == [(record.message, record.entry) for record in caplog.records]


async def test_the_file_is_taken_over_while_the_router_runs(path: Path, build: Callable[..., Authenticator]) -> None:
    old = add_key(path, KeyPlan("acme"))
    authenticator = build()
    new = add_key(path, KeyPlan("acme"))
    assert "the API key is not known" == refusal(authenticator, with_key(new))
    await authenticator.refresh()
    assert "acme" == authenticator(with_key(new)).tenant

    await asyncio.to_thread(path.write_text, "[[keys]")
    await authenticator.refresh()
    assert ["acme", "acme"] == [authenticator(with_key(key)).tenant for key in (old, new)]

    await asyncio.to_thread(path.write_text, "")
    await authenticator.refresh()
    assert "the API key is not known" == refusal(authenticator, with_key(old))


def test_nobody_gets_in_without_credentials_where_there_are_keys(
    path: Path, build: Callable[..., Authenticator]
) -> None:
    add_key(path, KeyPlan("acme"))

    assert "credentials are missing" in refusal(build(), Call())
    assert Caller("anonymous", Role.USER) == build(anonymous=True)(Call())
    assert Caller("anonymous", Role.OPERATOR) == build(anonymous=True, anonymous_role="operator")(Call())


def test_a_local_router_without_keys_lets_everybody_in_but_no_key_that_it_can_not_check(
    build: Callable[..., Authenticator],
) -> None:
    authenticator = build(keys_file=None)

    assert ANONYMOUS == authenticator(Call())
    told = refusal(authenticator, with_key(mint_key()))
    # The registry may have keys, so it is not said that there are none.
    assert "the API key is not known: auth.keys_file is unset, and the registry has no such key; call without" in told


@pytest.mark.parametrize("anonymous", [True, False])
@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", "Basic YTpi")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer")],
        [("authorization", "")],
        [("authorization", "Bearer a"), ("authorization", "Bearer b")],
    ],
)
def test_a_header_that_is_no_key_is_refused_even_where_none_is_needed(
    path: Path, build: Callable[..., Authenticator], anonymous: bool, metadata: list[tuple[str, str]]
) -> None:
    add_key(path, KeyPlan("acme"))
    assert "must be given once, as: Bearer" in refusal(build(anonymous=anonymous), Call(*metadata))


CERTIFICATES = """
[[certificates]]
uri = "spiffe://x/acme"
tenant = "acme"
role = "admin"

[[certificates]]
common_name = "worker"
tenant = "workers"
expires = 2026-06-01T01:00:00Z

[[certificates]]
common_name = "spiffe://x/mixed"
tenant = "mixed"
"""


def test_a_client_certificate_stands_for_its_entry(
    path: Path, build: Callable[..., Authenticator], clock: ManualClock
) -> None:
    key = add_key(path, KeyPlan("by-key"))
    path.write_text(path.read_text() + CERTIFICATES)
    authenticator = build()
    worker = Call(x509_common_name=b"worker")

    assert ("acme", Role.ADMIN) == (
        (caller := authenticator(Call(peer_uri=b"spiffe://x/acme", x509_common_name=b"worker"))).tenant,
        caller.role,
    )
    assert "workers" == authenticator(worker).tenant
    assert Credential(CredentialKind.CERTIFICATE, "common_name worker", (NOW.timestamp() + 3600) * 1000) == (
        authenticator(worker).credential
    )
    # The key is what the caller says now; the certificate belongs to its connection.
    assert "by-key" == authenticator(Call(("authorization", f"Bearer {key}"), x509_common_name=b"worker")).tenant
    clock.advance(3600)
    assert "the client certificate is expired" == refusal(authenticator, worker)


def test_names_of_certificates_are_not_taken_for_each_other(path: Path, build: Callable[..., Authenticator]) -> None:
    """Authorities check URIs and common names differently; one must not pass for the other."""
    path.write_text(CERTIFICATES)
    authenticator = build()

    for call in (
        Call(peer_uri=b"worker"),
        Call(x509_common_name=b"spiffe://x/acme"),
        Call(peer_uri=b"spiffe://x/mixed"),
    ):
        assert "credentials are missing" in refusal(authenticator, call)


def test_a_bad_keys_file_keeps_a_router_from_starting(path: Path, build: Callable[..., Authenticator]) -> None:
    path.write_text("x = 1")
    with pytest.raises(SettingsError, match=r"keys\.toml: x: unknown setting"):
        build()
