"""Public keys of an issuer, read from a JSON Web Key Set.

Only the public members of a key with a known type are read, so that a private or a shared key in the set (`oct`) can't
become one that verifies signatures. Each algorithm fits one type of key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jwt import PyJWK
from jwt.exceptions import PyJWTError

MAX_KEYS = 256
"""Most keys of a set that are read."""
_LEAST_RSA_BITS = 2_048
_MOST_RSA_BITS = 16_384
"""Checks with larger keys would hold up the event loop."""
_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})


class KeySetError(ValueError):
    """A document that is no set of keys, or one without a key that can be used. Never contains a key."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key. Two keys are equal if name and numbers are."""

    key_id: str | None
    thumbprint: str
    algorithms: frozenset[str] = field(compare=False)
    """Algorithms whose signatures it may check."""
    public_key: Any = field(compare=False, repr=False)


class KeySet:
    """Keys of an issuer at one time."""

    def __init__(self, keys: Iterable[IssuerKey]) -> None:
        self._keys = tuple(keys)
        self._known = frozenset(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: IssuerKey) -> bool:
        return key in self._known

    def same(self, other: KeySet) -> bool:
        """Return whether another set has the same keys."""
        return self._known == other._known

    def find(self, key_id: str | None, algorithm: str) -> IssuerKey | None:
        """Return the key for a signature. A token that names no key needs a set in which only one fits."""
        fit = [key for key in self._keys if algorithm in key.algorithms and key_id in (None, key.key_id)]
        return fit[0] if len(fit) == 1 or (fit and key_id is not None) else None

    def names(self, key_id: str | None) -> bool:
        """Return whether there is a key of this name."""
        return any(key.key_id == key_id for key in self._keys)


def read_key_set(document: object) -> KeySet:
    """Read a set. Keys for other purposes, and of types that are not known, are left out.

    Raises:
        KeySetError: it has no key that can be used.
    """
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise KeySetError("has no list `keys`")
    keys = [key for each in listed[:MAX_KEYS] if isinstance(each, dict) and (key := _read(each)) is not None]
    if not keys:
        raise KeySetError(f"has no key for signatures among its {len(listed)} keys")
    return KeySet(keys)


def _read(jwk: Mapping[str, Any]) -> IssuerKey | None:
    operations = jwk.get("key_ops")
    if jwk.get("use", "sig") != "sig" or (isinstance(operations, list) and "verify" not in operations):
        return None
    found = _public_part(jwk)
    if found is None:
        return None
    public, algorithms = found
    if (own := jwk.get("alg")) is not None:
        algorithms = algorithms & {own} if isinstance(own, str) else frozenset()
    if not algorithms:
        return None
    try:
        key = PyJWK(public, min(algorithms)).key
    except (PyJWTError, ValueError, TypeError):
        return None
    if public["kty"] == "RSA" and not _LEAST_RSA_BITS <= key.key_size <= _MOST_RSA_BITS:
        return None
    name = jwk.get("kid")
    text = json.dumps(public, sort_keys=True)
    thumbprint = hashlib.sha256(text.encode()).hexdigest()
    return IssuerKey(name if isinstance(name, str) else None, thumbprint, algorithms, key)


def _public_part(jwk: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]] | None:
    """Return the public members of a key, and the algorithms of its type; None where the type is not known."""
    members: tuple[str, ...]
    match jwk.get("kty"), jwk.get("crv"):
        case "RSA", _:
            members, algorithms = ("n", "e"), _RSA
        case "EC", str(curve) if curve in _CURVES:
            members, algorithms = ("crv", "x", "y"), frozenset({_CURVES[curve]})
        case "OKP", "Ed25519":
            members, algorithms = ("crv", "x"), frozenset({"EdDSA"})
        case _:
            return None
    if not all(isinstance(jwk.get(name), str) for name in members):
        return None
    return {"kty": jwk["kty"], **{name: jwk[name] for name in members}}, algorithms
