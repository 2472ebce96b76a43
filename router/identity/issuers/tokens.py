"""Checks of tokens: issuer, algorithm, key, signature, audience, claims.

The table of settings fixes what a token may use: algorithms with a public key only, and keys of the issuer that the
token names, each with the algorithms of its type. Nothing in a token's header can widen that. Headers with addresses
or keys of their own (`jku`, `x5u`, `jwk`) are not read.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt
from jwt.exceptions import InvalidSignatureError, PyJWTError

from cluster.clock import Clock
from cluster.errors import IssuerUnavailableError, UnauthenticatedError
from cluster.settings import IssuerSettings, Settings
from cluster.trust.file_watch import OnReload
from router.identity.issuers.claims import entry_of
from router.identity.issuers.key_set import IssuerKey
from router.identity.issuers.key_source import FetchedKeySource, FileKeySource, KeySource
from router.identity.table import Entry

MAX_TOKEN_BYTES = 16_384
"""Longest token."""
MAX_CACHED = 10_000
"""Most verified tokens that are remembered, some 500 bytes each."""
_MAX_KEY_ID = 512
_SHOWN = 100
_PARTS = 3
# Times and audience are checked here: by the router's clock, and with messages that say which.
_SIGNATURE_ONLY: Any = {
    "verify_signature": True,
    **dict.fromkeys(
        ("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss", "verify_sub", "verify_jti"), False
    ),
}


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer and its keys."""

    name: str
    settings: IssuerSettings
    keys: KeySource


def open_issuers(settings: Settings, clock: Clock, on_reload: OnReload) -> list[Issuer]:
    """Return the issuers of the settings. Nothing is fetched before `KeySource.keep` runs.

    Raises:
        SettingsError: a file of keys or certificates is not valid.
    """

    def source(name: str, one: IssuerSettings) -> KeySource:
        if one.jwks_file is not None:
            return FileKeySource(name, one.jwks_file, on_reload)
        return FetchedKeySource(name, one, clock)

    return [Issuer(name, one, source(name, one)) for name, one in settings.auth.jwt.items()]


def looks_like_token(text: str) -> bool:
    """Return whether a bearer credential has the form of a signed token, and not of an API key."""
    return text.startswith("eyJ") and text.count(".") == _PARTS - 1


class Tokens:
    """Verification of tokens. A token that was verified is remembered until its key is withdrawn."""

    def __init__(self, issuers: Sequence[Issuer]) -> None:
        self._issuers: dict[str, list[Issuer]] = {}
        for issuer in issuers:
            self._issuers.setdefault(issuer.settings.issuer, []).append(issuer)
        self._verified: OrderedDict[bytes, tuple[Entry, Issuer, IssuerKey]] = OrderedDict()

    def __call__(self, token: str) -> Entry | None:
        """Return the entry of a token; the caller checks its time. None where the text is no token.

        Raises:
            UnauthenticatedError: the token is wrong; the error says how, and nothing about other tokens.
            IssuerUnavailableError: its key is not known yet.
        """
        if not looks_like_token(token):
            return None
        if len(token) > MAX_TOKEN_BYTES:
            raise UnauthenticatedError(f"the token must have at most {MAX_TOKEN_BYTES} bytes, got {len(token)}")
        digest = hashlib.sha256(token.encode()).digest()
        found = self._verified.get(digest)
        if found is not None:
            entry, issuer, key = found
            current = issuer.keys.current()
            if current is not None and key in current:
                self._verified.move_to_end(digest)
                return entry
            del self._verified[digest]
        entry, issuer, key = self._verify(token)
        self._verified[digest] = entry, issuer, key
        if len(self._verified) > MAX_CACHED:
            self._verified.popitem(last=False)
        return entry

    def _verify(self, token: str) -> tuple[Entry, Issuer, IssuerKey]:
        header, told = _unverified(token)
        issuer = self._issuer_of(told)
        algorithm = header.get("alg")
        if algorithm not in issuer.settings.algorithms:
            raise UnauthenticatedError(f"the token's algorithm {_shown(algorithm)} is not allowed")
        key = _key_of(issuer, header.get("kid"), algorithm)
        try:
            claims = jwt.decode(token, key.public_key, algorithms=[algorithm], options=_SIGNATURE_ONLY)
        except InvalidSignatureError:
            raise UnauthenticatedError("the token's signature is wrong") from None
        except (PyJWTError, ValueError, TypeError, RecursionError):
            # A header that must be understood (`crit`) and is not, among others.
            raise _malformed() from None
        return entry_of(issuer.name, issuer.settings, claims), issuer, key

    def _issuer_of(self, claims: Mapping[str, Any]) -> Issuer:
        """Return the issuer that a token names, of several with the one name that of its audience."""
        name, audience = claims.get("iss"), claims.get("aud")
        named = self._issuers.get(name, []) if isinstance(name, str) else []
        if not named:
            raise UnauthenticatedError(f"the token's issuer {_shown(name)} is not trusted here")
        meant = {audience} if isinstance(audience, str) else set(_texts(audience))
        for issuer in named:
            if meant.intersection(issuer.settings.audiences):
                return issuer
        raise UnauthenticatedError(f"the token's audience {_shown(audience)} is not this cluster")


def _unverified(token: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    try:
        found = jwt.decode_complete(token, options={"verify_signature": False})
    except (PyJWTError, ValueError, TypeError, RecursionError):
        raise _malformed() from None
    return found["header"], found["payload"]


def _key_of(issuer: Issuer, key_id: object, algorithm: str) -> IssuerKey:
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > _MAX_KEY_ID):
        raise _malformed()
    keys = issuer.keys.current()
    if keys is not None:
        key = keys.find(key_id, algorithm)
        if key is not None:
            return key
        if key_id is None:
            raise UnauthenticatedError("the token names no key (`kid`), and not exactly one key of its issuer fits")
        if keys.names(key_id):
            raise UnauthenticatedError(f"the token's algorithm {_shown(algorithm)} does not fit its key")
    wait_s = issuer.keys.ask_for(key_id or "")
    if wait_s is not None:
        raise IssuerUnavailableError(issuer.name, wait_s)
    raise UnauthenticatedError(f"the token's key (`kid`) {_shown(key_id)} is none of its issuer's")


def _malformed() -> UnauthenticatedError:
    return UnauthenticatedError("the token is malformed")


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _shown(value: object) -> str:
    """Return what a client sent, cut, as an error repeats it. It may be nested too deeply for `repr`."""
    if isinstance(value, list):
        value = ", ".join(_texts(value))
    if not isinstance(value, str):
        return "(none)" if value is None else "(no text)"
    return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}...")
