"""New keys in a keys file."""

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
    """Rights of a new key. The fields are those of the keys file."""

    tenant: str
    role: str = "user"
    models: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    not_before: datetime | None = None
    expires: datetime | None = None


def add_key(path: Path, plan: KeyPlan) -> str:
    """Create a key, add its entry to the file and return the key. A file that does not exist is created with mode 0600.

    The rest of the file, comments included, stays as it is. Routers see the old file or the new one, never half of it.

    Raises:
        SettingsError: the file or the plan is not valid; nothing is written then.
    """
    key = mint_key()
    # A symbolic link to the file stays a link.
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
        # The new file would replace the device or pipe; with `/dev/null`, for all processes of the machine.
        raise SettingsError(f"{SETTING}: {path} must be a regular file to add a key to")
    read_keys_file(path)
    text = path.read_text(encoding="utf-8")
    return text if not text or text.endswith("\n") else text + "\n"


def _block(key: str, plan: KeyPlan) -> str:
    # TOML writes basic strings, and arrays of them, as JSON does.
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
                # The router that reads the file may run as another user. Usually only root can change a file's owner.
                with suppress(OSError):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), old.st_mode & 0o777)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        # On a read-only file system even a file that isn't there can't be removed.
        with suppress(OSError):
            partial.unlink()
        raise SettingsError(f"{SETTING}: {path} cannot be written: {error.strerror}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    # Two runs of `penstock keys new` at the same time must not lose a key. The file is replaced, so the lock is on its
    # folder.
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise SettingsError(f"{SETTING}: folder {folder} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
