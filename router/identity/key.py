"""API keys: `psk_<id>_<secret>`.

The id is public: it finds the key's entry, and may appear in logs. The secret has 256 random bits, so nobody can try
them out, and one SHA-256 protects it as well as a slow, salted hash would; those exist for secrets that people choose.
A fast hash also means that nobody can keep a router busy with wrong keys.
"""

from __future__ import annotations

import hashlib
import re
import secrets

_SHAPE = re.compile(r"psk_([0-9a-f]{16})_[0-9a-f]{64}", re.ASCII)
_LOOKS_LIKE = re.compile(r"psk_[0-9a-f]{16}_[0-9a-f]+", re.ASCII)


def mint_key() -> str:
    """Make a new key. It must be shown once and then forgotten; only `hash_key` of it is kept."""
    return f"psk_{secrets.token_hex(8)}_{secrets.token_hex(32)}"


def hash_key(key: str) -> str:
    """Return the SHA-256 of the whole key, 64 hexadecimal digits."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_id(key: str) -> str | None:
    """Return the public part; None when this is no key of ours."""
    match = _SHAPE.fullmatch(key)
    return match.group(1) if match is not None else None


def redact(text: str) -> str:
    """Take keys out of a text that quotes what somebody wrote."""
    return _LOOKS_LIKE.sub("psk_***", text)
