"""The cluster secret, which proves that a router, replica, registry record or resume token belongs to this cluster."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from cluster.errors import SettingsError
from cluster.trust.file_watch import OnReload, Watched

SECRET_FILE = "cluster.secret_file"  # noqa: S105 - the name of a setting
"""Name of the secret's file in logs and metrics."""
LOOK_S = 1.0
"""Least seconds between two looks at the file. A look takes some microseconds."""
_MIN_BYTES = 16
_MOST = 8
"""Most secrets at once. A wrong proof is compared with all of them."""


class ClusterSecret:
    """Signer and verifier of byte strings, each for one purpose only, so that a proof can't be used elsewhere.

    It may have several secrets. The first one signs, and what any of them signed is right. So a secret can be replaced
    while the cluster runs. One that comes from a file follows the file about a second after a change.
    """

    def __init__(self, signer: bytes, *accepted: bytes, file: Watched[tuple[bytes, ...]] | None = None) -> None:
        """`file` has newer secrets than these, once it changes."""
        self._keys = _checked((signer, *accepted), "cluster secret")
        self._file = file
        self._look_at = 0.0

    def __repr__(self) -> str:
        return "ClusterSecret(***)"

    @classmethod
    def from_file(cls, path: Path) -> ClusterSecret:
        """Read the secrets, one a line. White space around a line is ignored. A file that is no text is one secret.

        Raises:
            SettingsError: the file is missing or unreadable, or has a secret that is too short.
        """
        file = Watched(SECRET_FILE, [path], lambda: _read(path))
        return cls(*file.content, file=file)

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

    def watch(self, on_reload: OnReload) -> None:
        """Tell of changes of the file from now on."""
        if self._file is not None:
            self._file.on_reload = on_reload

    def current(self) -> tuple[bytes, ...]:
        """Return the secrets in force; two calls give equal ones unless they changed. Reads a changed file."""
        if self._file is not None and (now := time.monotonic()) >= self._look_at:
            self._look_at = now + LOOK_S
            if self._file.refresh():
                self._keys = self._file.content
        return self._keys

    def sign(self, purpose: str, payload: bytes) -> bytes:
        """Return the 32-byte HMAC-SHA256 of the payload for this purpose."""
        return _sign(self.current()[0], purpose, payload)

    def signer(self) -> ClusterSecret:
        """Return the secret that signs now, alone. It does not follow the file."""
        return ClusterSecret(self.current()[0])

    def signer_of(self, purpose: str, payload: bytes, proof: bytes) -> ClusterSecret | None:
        """Return the secret with which a proof was made, alone; None for a wrong proof. The time it takes does not
        depend on how much of the proof is right.
        """
        for key in self.current():
            if hmac.compare_digest(_sign(key, purpose, payload), proof):
                return ClusterSecret(key)
        return None

    def verify(self, purpose: str, payload: bytes, proof: bytes) -> bool:
        """Return whether a proof is right."""
        return self.signer_of(purpose, payload, proof) is not None

    def seal(self, purpose: str, payload: bytes) -> bytes:
        """Return the proof followed by the payload."""
        return self.sign(purpose, payload) + payload

    def open(self, purpose: str, sealed: bytes) -> bytes | None:
        """Return the payload of sealed bytes; None when they were not sealed with a secret of this cluster for this
        purpose.
        """
        proof, payload = sealed[:32], sealed[32:]
        return payload if self.verify(purpose, payload, proof) else None


def _sign(key: bytes, purpose: str, payload: bytes) -> bytes:
    return hmac.digest(key, purpose.encode() + b"\0" + payload, hashlib.sha256)


def _read(path: Path) -> tuple[bytes, ...]:
    try:
        content = path.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"cluster secret {path} cannot be read: {error.strerror}") from error
    # Random bytes may have line ends among them.
    is_text = content.isascii() and all(line.isprintable() for line in content.decode("ascii").splitlines())
    lines = [line.strip() for line in content.split(b"\n")] if is_text else [content]
    return _checked(tuple(line for line in lines if line) or (b"",), f"cluster secret {path}")


def _checked(keys: tuple[bytes, ...], name: str) -> tuple[bytes, ...]:
    for number, key in enumerate(keys, 1):
        if len(key) < _MIN_BYTES:
            which = f", line {number}," if len(keys) > 1 else ""
            raise SettingsError(f"{name}{which} must have at least {_MIN_BYTES} bytes, got {len(key)}")
    if len(keys) > _MOST:
        raise SettingsError(f"{name} must have at most {_MOST} lines, got {len(keys)}")
    return keys


def _write(descriptor: int, path: Path) -> None:
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    except OSError:
        # A partly written secret would be refused at every start.
        path.unlink()
        raise
