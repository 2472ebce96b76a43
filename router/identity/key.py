"""API keys: `psk_<id>_<secret>`.

The id is public: it finds the key's entry, and may appear in logs. The secret has 256 random bits, which cannot be
guessed by trying. So one SHA-256 protects it as well as a slow, salted hash; slow hashes exist for secrets that people
choose. A fast hash also means that wrong keys cannot keep a router busy.
"""

from __future__ import annotations

import hashlib
import re
import secrets

_SHAPE = re.compile(r"psk_([0-9a-f]{16})_[0-9a-f]{64}", re.ASCII)
_LOOKS_LIKE = re.compile(r"psk_[0-9a-f]{16}_[0-9a-f]+", re.ASCII)


def mint_key() -> str:
    """Return a new key. Show it once and then forget it; only `hash_key` of it is kept."""
    return f"psk_{secrets.token_hex(8)}_{secrets.token_hex(32)}"


def hash_key(key: str) -> str:
    """Return the SHA-256 of the whole key, 64 hexadecimal digits."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_id(key: str) -> str | None:
    """Return the public part of a key; None when the text is no key of this format."""
    match = _SHAPE.fullmatch(key)
    return match.group(1) if match is not None else None


def redact(text: str) -> str:
    """Remove keys from a text that quotes an operator's file."""
    return _LOOKS_LIKE.sub("psk_***", text)
