"""The cluster secret, which proves that a router, replica, registry record or resume token belongs to this cluster."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from cluster.errors import SettingsError

_MIN_BYTES = 16


class ClusterSecret:
    """Signer and verifier of byte strings, each for one purpose only, so that a proof can't be used elsewhere."""

    def __init__(self, key: bytes, name: str = "cluster secret") -> None:
        if len(key) < _MIN_BYTES:
            raise SettingsError(f"{name} must have at least {_MIN_BYTES} bytes, got {len(key)}")
        self._key = key

    def __repr__(self) -> str:
        return "ClusterSecret(***)"

    @classmethod
    def from_file(cls, path: Path) -> ClusterSecret:
        """Read the secret; surrounding white space is ignored.

        Raises:
            SettingsError: the file is missing, unreadable or too short.
        """
        try:
            return cls(path.read_bytes().strip(), f"cluster secret {path}")
        except OSError as error:
            raise SettingsError(f"cluster secret {path} cannot be read: {error.strerror}") from error

    @classmethod
    def create_file(cls, path: Path) -> ClusterSecret:
        """Read the secret; if there is no file, create one with a random secret and mode 0600.

        Raises:
            SettingsError: the file can't be created, or is missing, unreadable or too short.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                _write(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), path)
        except OSError as error:
            raise SettingsError(f"cluster secret {path} cannot be written: {error.strerror}") from error
        return cls.from_file(path)

    def sign(self, purpose: str, payload: bytes) -> bytes:
        """Return the 32-byte HMAC-SHA256 of the payload for this purpose."""
        return hmac.digest(self._key, purpose.encode() + b"\0" + payload, hashlib.sha256)

    def verify(self, purpose: str, payload: bytes, proof: bytes) -> bool:
        """Return whether a proof is right; takes the same time for every proof."""
        return hmac.compare_digest(self.sign(purpose, payload), proof)

    def seal(self, purpose: str, payload: bytes) -> bytes:
        """Return the proof followed by the payload."""
        return self.sign(purpose, payload) + payload

    def open(self, purpose: str, sealed: bytes) -> bytes | None:
        """Return the payload of sealed bytes; None when they were not sealed with this secret for this purpose."""
        proof, payload = sealed[:32], sealed[32:]
        return payload if self.verify(purpose, payload, proof) else None


def _write(descriptor: int, path: Path) -> None:
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    except OSError:
        # A partly written secret would be refused at every start.
        path.unlink()
        raise
