"""Requests for an issuer's keys over HTTP."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from cluster.addresses import is_loopback
from cluster.errors import SettingsError, plain_reason
from cluster.settings import IssuerSettings
from cluster.settings.auth import unsafe_url
from cluster.trust.verifying import trusting
from router.identity.issuers.key_set import KeySet, KeySetError, read_key_set

FETCH_S = 5.0
"""Longest time of one request."""
MAX_BYTES = 1 << 20
"""Longest answer."""
_DISCOVERY = "/.well-known/openid-configuration"


class FetchError(Exception):
    """A request for keys that failed. Never contains the bearer token."""


def check_ca_file(name: str, settings: IssuerSettings) -> None:
    """Check the authorities' file of an issuer.

    Raises:
        SettingsError: it can't be read, or has no certificate.
    """
    try:
        _tls(settings)
    except FetchError as error:
        raise SettingsError(f"auth.jwt.{name}.{error}") from None


async def fetch_keys(settings: IssuerSettings) -> KeySet:
    """Fetch the keys of an issuer. Redirections are not followed, so that no other address can bring keys.

    Raises:
        FetchError: there are none.
    """
    # Both files may be replaced while the router runs, so they are read each time.
    tls, headers = await asyncio.to_thread(_prepare, settings)
    timeout = aiohttp.ClientTimeout(total=FETCH_S)
    # The proxy of the environment, but not for this machine.
    proxied = not is_loopback(urlsplit(settings.jwks_url or settings.issuer).hostname or "")
    connector = aiohttp.TCPConnector(ssl=tls)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=proxied) as session:
        url = settings.jwks_url or await _discover(session, settings.issuer)
        document = await _get(session, url, headers)
    try:
        # Large sets take milliseconds.
        return await asyncio.to_thread(read_key_set, document)
    except KeySetError as error:
        raise FetchError(f"{url}: {error}") from None


async def _discover(session: aiohttp.ClientSession, issuer: str) -> str:
    url = issuer.removesuffix("/") + _DISCOVERY
    document = await _get(session, url, {})
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        raise FetchError(f"{url}: is not about the issuer {issuer}")
    found = document.get("jwks_uri")
    if not isinstance(found, str):
        raise FetchError(f"{url}: has no jwks_uri")
    if problem := unsafe_url(found):
        raise FetchError(f"{url}: jwks_uri {problem}")
    return found


async def _get(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> Any:
    try:
        async with session.get(url, headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                raise FetchError(f"{url}: answered with status {answer.status}")
            data = b""
            async for part in answer.content.iter_chunked(1 << 16):
                data += part
                if len(data) > MAX_BYTES:
                    raise FetchError(f"{url}: answered with more than {MAX_BYTES} bytes")
    except TimeoutError:
        raise FetchError(f"{url}: no answer within {FETCH_S:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise FetchError(f"{url}: {plain_reason(error)}") from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise FetchError(f"{url}: answered with something else than JSON") from None


def _prepare(settings: IssuerSettings) -> tuple[ssl.SSLContext, Mapping[str, str]]:
    """Read the files. Blocks on the disk."""
    headers = {"accept": "application/json"}
    if settings.token_file is not None:
        try:
            headers["authorization"] = f"Bearer {settings.token_file.read_text(encoding='ascii').strip()}"
        except (OSError, UnicodeDecodeError) as error:
            raise FetchError(f"token_file: {settings.token_file} cannot be read: {plain_reason(error)}") from None
    return _tls(settings), headers


def _tls(settings: IssuerSettings) -> ssl.SSLContext:
    try:
        return trusting(settings.ca_file)
    except (OSError, ValueError) as error:
        raise FetchError(f"ca_file: {settings.ca_file} cannot be read: {plain_reason(error)}") from None
