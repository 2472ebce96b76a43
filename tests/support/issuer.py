"""An issuer of tokens: keys, signatures, and a server with its public keys."""

from __future__ import annotations

import functools
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "penstock"


@functools.cache
def rsa_key(name: str) -> Any:
    """Return an RSA key; making one takes a while. The same name gives the same key."""
    assert name
    return rsa.generate_private_key(public_exponent=65_537, key_size=2_048)


@functools.cache
def curve_key(name: str) -> Any:
    """Return a key on P-256, as above."""
    assert name
    return ec.generate_private_key(ec.SECP256R1())


@functools.cache
def edwards_key(name: str) -> Any:
    """Return an Ed25519 key, as above."""
    assert name
    return ed25519.Ed25519PrivateKey.generate()


def public_jwk(key: Any, key_id: str | None, **more: Any) -> dict[str, Any]:
    """Return the public part of a key as a JSON Web Key."""
    public = key.public_key()
    kinds = ((rsa.RSAPublicKey, RSAAlgorithm), (ec.EllipticCurvePublicKey, ECAlgorithm))
    kind = next((algorithm for each, algorithm in kinds if isinstance(public, each)), OKPAlgorithm)
    found: dict[str, Any] = json.loads(kind.to_jwk(public))  # type: ignore[arg-type]
    found.pop("key_ops", None)
    return {**found, **({} if key_id is None else {"kid": key_id}), **more}


class IssuerServer:
    """An OpenID Connect provider with the parts that a router asks for."""

    def __init__(self) -> None:
        self.issuer = ""
        """Its address, once it runs."""
        self.keys: list[dict[str, Any]] = [public_jwk(rsa_key("a"), "a")]
        """Keys that it shows."""
        self.status = 200
        """Status of its answers."""
        self.asked = 0
        """Number of requests for keys."""
        self.jwks_uri = ""
        self.authorization: list[str] = []
        """Credentials of the requests for keys."""

    def token(
        self, key: Any = None, key_id: str | None = "a", algorithm: str = "RS256", headers: Any = None, **claims: Any
    ) -> str:
        """Return a token that is valid for an hour. Claims that are None are left out."""
        now = time.time()
        told = {"iss": self.issuer, "aud": AUDIENCE, "exp": now + 3600, "tenant": "acme", **claims}
        told = {name: value for name, value in told.items() if value is not None}
        head = {**({} if key_id is None else {"kid": key_id}), **(headers or {})}
        return jwt.encode(told, rsa_key("a") if key is None else key, algorithm=algorithm, headers=head)

    async def _configuration(self, _request: web.Request) -> web.Response:
        return web.json_response({"issuer": self.issuer, "jwks_uri": self.jwks_uri}, status=self.status)

    async def _jwks(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.authorization.append(request.headers.get("authorization", ""))
        return web.json_response({"keys": self.keys}, status=self.status)

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[IssuerServer]:
        """Serve on a port of this machine."""
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._configuration)
        app.router.add_get("/jwks", self._jwks)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            port = runner.addresses[0][1]
            self.issuer = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
            self.jwks_uri = f"{self.issuer}/jwks"
            yield self
        finally:
            await runner.cleanup()
