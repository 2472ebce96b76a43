"""Adds a key to a keys file."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cluster.errors import SettingsError
from router.identity.key import hash_key, key_id, mint_key
from router.identity.keys_file import SETTING, parse_keys_file, read_keys_file

_MODE = 0o600


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """Is what a new key is for. Fields are those of the file."""

    tenant: str
    role: str = "user"
    models: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    not_before: datetime | None = None
    expires: datetime | None = None


def add_key(path: Path, plan: KeyPlan) -> str:
    """Mint a key, add its entry to the file (made with mode 0600 when there is none) and return the key.

    The rest of the file, comments included, stays as it is. Routers see the old file or the new one, never half of it.

    Raises:
        SettingsError: the file is not good before, or the plan is not; then nothing is written.
    """
    key = mint_key()
    # A link to the file stays one.
    path = path.resolve()
    with _locked(path.parent):
        text = _present(path)
        text += ("\n" if text and not text.endswith("\n\n") else "") + _block(key, plan)
        try:
            parse_keys_file(text)
        except SettingsError as error:
            raise SettingsError(f"new key: {error}") from None
        _replace(path, text)
    return key


def _present(path: Path) -> str:
    if not path.exists():
        return ""
    if not path.is_file():
        # The new file would take the place of the device or pipe, for everybody on the machine if it is `/dev/null`.
        raise SettingsError(f"{SETTING}: {path} must be a regular file to add a key to")
    read_keys_file(path)
    text = path.read_text(encoding="utf-8")
    return text if not text or text.endswith("\n") else text + "\n"


def _block(key: str, plan: KeyPlan) -> str:
    # TOML's basic strings and arrays of them are written as JSON's are.
    fields = {
        "id": key_id(key),
        "sha256": hash_key(key),
        "tenant": plan.tenant,
        "role": plan.role,
        "models": plan.models,
        "classes": plan.classes,
    }
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items() if value is not None]
    moments = {"not_before": plan.not_before, "expires": plan.expires}
    lines += [f"{name} = {moment.isoformat(timespec='seconds')}" for name, moment in moments.items() if moment]
    return "\n".join(("[[keys]]", *lines, ""))


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    old = path.stat() if path.exists() else None
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "w", encoding="utf-8") as file:
            if old is not None:
                # The router that reads it may be another user. Mostly only root can give a file away.
                with suppress(OSError):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), old.st_mode & 0o777)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SettingsError(f"{SETTING}: {path} cannot be written: {error.strerror}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    # Two `penstock keys new` at once must lose neither key; the file itself is replaced, so its folder is locked.
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise SettingsError(f"{SETTING}: folder {folder} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
