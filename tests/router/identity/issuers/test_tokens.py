"""From tokens to callers, with an issuer's own keys over HTTP."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from cluster.clock import ManualClock
from cluster.errors import IssuerUnavailableError, SettingsError, UnauthenticatedError
from cluster.settings import load_settings
from penstock.models import RequestClass
from router.identity import Authenticator, Caller, Role
from router.identity.issuers.tokens import MAX_TOKEN_BYTES
from tests.support.certificates import LOOPBACK, Authority
from tests.support.issuer import AUDIENCE, IssuerServer, curve_key, edwards_key, public_jwk, rsa_key
from tests.support.waiting import until


class Call:
    """A call with a bearer credential."""

    def __init__(self, credential: str) -> None:
        self._credential = credential

    def invocation_metadata(self) -> Any:
        return (("authorization", f"Bearer {self._credential}"),)

    def auth_context(self) -> Any:
        return {}

    def peer_address(self) -> str:
        return "192.0.2.1"


class Scene:
    """An issuer, and a router's authentication that trusts it."""

    def __init__(self, issuer: IssuerServer, clock: ManualClock, **settings: Any) -> None:
        self.issuer, self.clock = issuer, clock
        table = {"issuer": issuer.issuer, "audiences": [AUDIENCE], "tenant_claim": "tenant", **settings}
        auth = {"jwt": {"idp": table}, "failures_per_minute": 0}
        self.authenticator = Authenticator(load_settings(flags={"auth": auth}, environ={}), clock=clock)

    def caller(self, token: str) -> Caller:
        return self.authenticator(Call(token))

    def refusal(self, token: str) -> str:
        with pytest.raises(UnauthenticatedError) as caught:
            self.caller(token)
        return str(caught.value)

    def retry_after_s(self, token: str) -> float:
        with pytest.raises(IssuerUnavailableError) as caught:
            self.caller(token)
        return caught.value.retry_after_s

    def is_refused(self, token: str) -> bool:
        try:
            return "none of its issuer's" in self.refusal(token)
        except IssuerUnavailableError:
            return False

    def works(self, token: str) -> bool:
        try:
            self.caller(token)
        except (IssuerUnavailableError, UnauthenticatedError):
            return False
        return True


@asynccontextmanager
async def scene(
    issuer: IssuerServer | None = None, tls: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[Scene]:
    """Run an issuer and a router's authentication; at the begin the router knows its keys."""
    async with (issuer or IssuerServer()).running(tls) as server:
        found = Scene(server, ManualClock(int(time.time() * 1000)), **settings)
        watch = asyncio.create_task(found.authenticator.watch())
        try:
            if server.status == 200:
                await until(lambda: found.authenticator._issuers[0].keys.current() is not None)
            yield found
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


# --- right tokens -----------------------------------------------------------------------------------------------------


async def test_a_token_is_verified_with_the_issuers_keys_and_its_claims_say_who_calls() -> None:
    settings = {
        "role_claim": "/realm/groups",
        "roles": {"sre": "operator", "boss": "admin"},
        "models": ["demo", "other"],
        "models_claim": "models",
        "classes_claim": "classes",
    }
    async with scene(**settings) as here:
        token = here.issuer.token(realm={"groups": ["x", "sre"]}, models=["demo", "secret"], classes="batch standard")
        classes = frozenset({RequestClass.BATCH, RequestClass.STANDARD})
        assert Caller("acme", Role.OPERATOR, frozenset({"demo"}), classes) == here.caller(token)
        # Without the claims: no model, no class, and the role of everybody.
        assert Caller("acme", Role.USER, frozenset(), frozenset()) == here.caller(here.issuer.token())


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (rsa_key("a"), "RS256"),
        (rsa_key("a"), "PS512"),
        (curve_key("b"), "ES256"),
        (edwards_key("c"), "EdDSA"),
    ],
    ids=["RS256", "PS512", "ES256", "EdDSA"],
)
async def test_all_kinds_of_public_keys_verify(key: Any, algorithm: str) -> None:
    issuer = IssuerServer()
    issuer.keys = [{"kty": "oct", "k": "c2VjcmV0", "kid": "o"}, public_jwk(key, "k", use="sig")]
    async with scene(issuer) as here:
        assert "acme" == here.caller(issuer.token(key, "k", algorithm)).tenant


async def test_a_service_account_of_kubernetes_is_a_tenant(tmp_path: Path) -> None:
    """The API server asks for a token, and has an authority of its own."""
    authority, account = Authority(), tmp_path / "token"
    account.write_text("first\n")
    certificate, key = authority.issue("api", *LOOPBACK).write(tmp_path, "api")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server = IssuerServer()
    async with server.running(tls):
        settings = {
            "jwks_url": server.jwks_uri,
            "ca_file": authority.write(tmp_path),
            "token_file": str(account),
            "tenant_claim": "sub",
            "tenants": {"system:serviceaccount:shop:web": "shop"},
            "refresh_s": 10,
        }
        here = Scene(server, ManualClock(int(time.time() * 1000)), **settings)
        watch = asyncio.create_task(here.authenticator.watch())
        await until(lambda: server.asked == 1)
        await until(lambda: here.works(server.token(sub="system:serviceaccount:shop:web")))
        assert "shop" == here.caller(server.token(sub="system:serviceaccount:shop:web")).tenant
        assert "names no tenant" in here.refusal(server.token(sub="system:serviceaccount:shop:other"))
        account.write_text("second\n")
        here.clock.advance(11)
        # An unknown key wakes the task, which has slept by the real clock.
        here.retry_after_s(server.token(key_id="unknown"))
        await until(lambda: server.asked == 2)
        assert ["Bearer first", "Bearer second"] == server.authorization
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def test_keys_may_come_from_a_file_that_is_read_again(tmp_path: Path) -> None:
    path, issuer = tmp_path / "jwks.json", IssuerServer()
    path.write_text(json.dumps({"keys": issuer.keys}))
    async with issuer.running():
        here = Scene(issuer, ManualClock(int(time.time() * 1000)), jwks_file=str(path))
        later = issuer.token(curve_key("b"), "b", "ES256")
        assert "acme" == here.caller(issuer.token()).tenant
        assert "none of its issuer's" in here.refusal(later)
        path.write_text(json.dumps({"keys": [public_jwk(curve_key("b"), "b")]}))
        here.authenticator._issuers[0].keys._file.refresh()  # type: ignore[attr-defined]
        assert "acme" == here.caller(later).tenant
        assert "none of its issuer's" in here.refusal(issuer.token()), "a withdrawn key counts no more"
        assert 0 == issuer.asked


# --- wrong tokens -----------------------------------------------------------------------------------------------------


async def test_what_is_wrong_with_a_token_is_said_and_nothing_else() -> None:
    settings = {"role": "none", "role_claim": "groups", "roles": {"staff": "user"}, "require": {"hd": "example.org"}}
    async with scene(**settings) as here:
        good: dict[str, Any] = {"groups": ["staff"], "hd": "example.org"}
        make = here.issuer.token
        now = here.clock.wall_ms() / 1000
        assert "acme" == here.caller(make(**good)).tenant
        wrong = [
            (make(**good, exp=now - 31), "the token is expired"),
            (make(**{**good, "exp": None}), "the token has no claim 'exp'"),
            (make(**good, exp="soon"), "'exp' must be a number"),
            (make(**good, exp=float("inf")), "'exp' must be a number"),
            (make(**good, nbf=now + 60), "the token is not valid yet"),
            (make(**good, aud="another"), "the token's audience 'another' is not this cluster"),
            (make(**good, aud=["x", "y"]), "the token's audience 'x, y' is not this cluster"),
            (make(**{**good, "aud": None}), "the token's audience (none) is not this cluster"),
            (make(**good, iss="https://evil.example"), "the token's issuer 'https://evil.example' is not trusted here"),
            (make(**{**good, "iss": None}), "the token's issuer (none) is not trusted here"),
            (make(**good, tenant="no/name"), "'tenant' is no name of a tenant"),
            (make(**good, tenant="anonymous"), "'tenant' is no name of a tenant"),
            (make(**good, tenant=["acme"]), "no text in the claim 'tenant'"),
            (make(**{**good, "groups": "guest"}), "'groups' gives it no role"),
            (make(**{**good, "hd": "example.com"}), "'hd' has not the value"),
            (make(rsa_key("stranger"), **good), "the token's signature is wrong"),
            (make(curve_key("b"), "a", "ES256", **good), "the token's algorithm 'ES256' does not fit its key"),
            (make(**good, headers={"crit": ["x"], "x": 1}), "the token is malformed"),
        ]
        for token, said in wrong:
            refusal = here.refusal(token)
            assert said in refusal
            assert not any(secret in refusal for secret in ("penstock", "example.org", "staff", here.issuer.issuer))


def _part(value: Any) -> str:
    return (
        base64.urlsafe_b64encode(value if isinstance(value, bytes) else json.dumps(value).encode()).decode().rstrip("=")
    )


async def test_a_token_without_a_signature_or_with_the_public_key_as_its_secret_is_refused() -> None:
    async with scene() as here:
        claims = jwt.decode(here.issuer.token(), options={"verify_signature": False})
        for none in ("none", "None", "NONE", ""):
            token = f"{_part({'alg': none, 'kid': 'a', 'typ': 'JWT'})}.{_part(claims)}."
            assert f"the token's algorithm {none!r} is not allowed" == here.refusal(token)
        public = rsa_key("a").public_key()
        forms = [
            public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
            public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
            json.dumps(here.issuer.keys[0]).encode(),
        ]
        for secret in forms:
            signed = f"{_part({'alg': 'HS256', 'kid': 'a'})}.{_part(claims)}"
            mac = hmac.digest(secret, signed.encode(), hashlib.sha256)
            assert "the token's algorithm 'HS256' is not allowed" == here.refusal(f"{signed}.{_part(mac)}")
        # With the right algorithm, and a key of its own in the header.
        own = public_jwk(rsa_key("stranger"), "a")
        for header in ({"jwk": own}, {"jku": "http://127.0.0.1:1/jwks"}, {"x5u": "http://127.0.0.1:1"}):
            assert "signature is wrong" in here.refusal(here.issuer.token(rsa_key("stranger"), headers=header))


async def test_an_algorithm_that_the_settings_leave_out_is_refused() -> None:
    async with scene(algorithms=["RS256"]) as here:
        assert "algorithm 'PS256' is not allowed" in here.refusal(here.issuer.token(algorithm="PS256"))
        assert "acme" == here.caller(here.issuer.token()).tenant


async def test_a_token_that_names_no_key_needs_an_issuer_with_one() -> None:
    async with scene(min_refresh_s=0.1) as here:
        token = here.issuer.token(key_id=None)
        assert "acme" == here.caller(token).tenant
        here.issuer.keys = [*here.issuer.keys, public_jwk(rsa_key("second"), "second")]
        here.clock.advance(1)
        here.retry_after_s(here.issuer.token(rsa_key("second"), "second"))
        await until(lambda: here.works(here.issuer.token(rsa_key("second"), "second")))
        assert "names no key" in here.refusal(here.issuer.token(key_id=None, tenant="else"))


@pytest.mark.parametrize(
    "token",
    [
        f"eyJ{'A' * MAX_TOKEN_BYTES}.{'A' * 9}.{'A' * 9}",
        "eyJ.x.y",
        f"eyJ{'!' * 8}.{_part({})}.AAAA",
        f"{_part(b'{' + b'%22a%22:[' + b'[' * 8000)}.{_part({})}.AAAA",
        f"{_part({'alg': 'RS256'})}.{_part(b'[' * 9000)}.AAAA",
        f"{_part({'alg': 'RS256'})}.{_part(b'[' * 5000 + b']' * 5000)}.AAAA",
        f"{_part({'alg': 'RS256'})}.{_part([1])}.AAAA",
        f"{_part({'alg': 'RS256', 'kid': 7})}.{_part({'iss': 'x'})}.AAAA",
        f"{_part({'alg': ['RS256']})}.{_part({'iss': {'a': 1}, 'aud': 3})}.AAAA",
        f"{_part({'alg': 'RS256', 'b64': False, 'crit': ['b64']})}..AAAA",
    ],
    ids=range(10),
)
async def test_a_huge_or_broken_token_is_refused_without_effort(token: str) -> None:
    async with scene() as here:
        began = time.process_time()
        assert here.refusal(token)
        assert time.process_time() - began < 2.0
        assert 1 == here.issuer.asked


# --- time -------------------------------------------------------------------------------------------------------------


async def test_a_token_ends_with_its_time_also_while_it_is_remembered(caplog: pytest.LogCaptureFixture) -> None:
    async with scene(refresh_s=3600) as here:
        now = here.clock.wall_ms() / 1000
        token, early = here.issuer.token(exp=now + 100), here.issuer.token(nbf=now + 100)
        assert "acme" == here.caller(token).tenant
        assert "the token is not valid yet" == here.refusal(early)
        here.clock.advance(129)
        assert ["acme", "acme"] == [here.caller(each).tenant for each in (token, early)]
        here.clock.advance(2)
        with caplog.at_level(logging.WARNING):
            assert "the token is expired" == here.refusal(token)
        assert token not in caplog.text


async def test_a_new_key_is_fetched_once_it_is_used_and_a_withdrawn_one_counts_no_more() -> None:
    async with scene() as here:
        old, new = here.issuer.token(), here.issuer.token(curve_key("b"), "b", "ES256")
        assert "acme" == here.caller(old).tenant
        here.issuer.keys = [public_jwk(curve_key("b"), "b")]
        here.clock.advance(11)
        assert here.retry_after_s(new) < 1
        await until(lambda: here.works(new))
        assert 2 == here.issuer.asked
        assert not here.works(old), "although it was verified before"


async def test_a_key_with_the_same_name_and_other_numbers_does_not_keep_old_tokens_alive() -> None:
    async with scene() as here:
        old, nudge = here.issuer.token(), here.issuer.token(curve_key("b"), "b", "ES256")
        here.caller(old)
        here.issuer.keys = [public_jwk(rsa_key("second"), "a"), public_jwk(curve_key("b"), "b")]
        here.clock.advance(11)
        here.retry_after_s(nudge)
        await until(lambda: here.works(nudge))
        assert "the token's signature is wrong" == here.refusal(old)


async def test_a_storm_of_unknown_keys_asks_the_issuer_once_per_interval() -> None:
    async with scene(min_refresh_s=0.5) as here:
        for round_ in range(1, 4):
            here.clock.advance(0.6)
            assert all(here.retry_after_s(here.issuer.token(key_id=f"{round_}-{n}")) <= 0.5 for n in range(20))
            # One of them is refused for good once the issuer has been asked.
            await until(partial(here.is_refused, here.issuer.token(key_id=f"{round_}-7")))
            assert round_ + 1 == here.issuer.asked
        # Names that were looked for are not looked for again.
        here.clock.advance(5)
        for n in range(20):
            here.refusal(here.issuer.token(key_id=f"3-{n}"))
        await asyncio.sleep(0.05)
        assert 4 == here.issuer.asked


async def test_without_its_issuer_known_keys_work_for_a_bounded_time() -> None:
    async with scene(refresh_s=20, keep_s=100) as here:
        token = here.issuer.token()
        here.caller(token)
        here.issuer.status = 503
        here.clock.advance(21)
        assert 0 < here.retry_after_s(here.issuer.token(key_id="new")) < 1
        keys = here.authenticator._issuers[0].keys
        await until(lambda: keys.fetches["bad"] >= 1)
        here.clock.advance(70)
        assert "acme" == here.caller(token).tenant
        here.clock.advance(10)
        assert here.retry_after_s(token) > 0
        here.issuer.status = 200
        here.retry_after_s(token)
        await until(lambda: here.works(token))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": 404}, "answered with status 404"),
        ({"keys": []}, "no key for signatures"),
        ({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "a"}]}, "no key for signatures"),
        ({"keys": [public_jwk(rsa_key("a"), "a", use="enc")]}, "no key for signatures"),
        ({"keys": [public_jwk(rsa_key("a"), "a", alg="HS256")]}, "no key for signatures"),
        ({"keys": ["x" * (1 << 20)]}, "more than 1048576 bytes"),
    ],
    ids=range(6),
)
async def test_an_issuers_bad_answer_is_logged_with_its_reason(
    change: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = IssuerServer()
    for name, value in change.items():
        setattr(issuer, name, value)
    async with issuer.running():
        here = Scene(issuer, ManualClock(int(time.time() * 1000)))
        with caplog.at_level(logging.WARNING):
            watch = asyncio.create_task(here.authenticator.watch())
            await until(lambda: here.authenticator._issuers[0].keys.fetches["bad"] == 1)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        assert 0 < here.retry_after_s(issuer.token())
        assert any(said in getattr(each, "error", "") for each in caplog.records)


async def test_keys_are_not_taken_from_an_issuer_of_another_name(caplog: pytest.LogCaptureFixture) -> None:
    issuer = IssuerServer()
    async with issuer.running():
        here = Scene(issuer, ManualClock(int(time.time() * 1000)))
        issuer.issuer += "/other"
        watch = asyncio.create_task(here.authenticator.watch())
        await until(lambda: here.authenticator._issuers[0].keys.fetches["bad"] == 1)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        assert 0 == issuer.asked


def test_a_file_of_authorities_without_one_keeps_a_router_from_starting(tmp_path: Path) -> None:
    table = {"issuer": "https://a", "audiences": ["x"], "tenant": "t", "ca_file": str(tmp_path / "none.crt")}
    settings = load_settings(flags={"auth": {"jwt": {"idp": table}}}, environ={})
    with pytest.raises(SettingsError, match=r"auth\.jwt\.idp\.ca_file: .*none\.crt cannot be read"):
        Authenticator(settings)
