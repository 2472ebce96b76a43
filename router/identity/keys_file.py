"""The file of API keys and client certificates that may call.

```toml
[[keys]]
id = "5d41402abc4b2a76"
sha256 = "..."                        # of the whole key; the key itself is not stored
tenant = "acme"
role = "user"                         # user (default), tenant_operator, operator, admin
models = ["small"]                    # absent: all
classes = ["standard", "batch"]       # absent: all
not_before = 2026-01-01T00:00:00Z     # absent: at once
expires = 2026-07-01T00:00:00Z        # absent: never

[[certificates]]
uri = "spiffe://example.org/acme"     # or common_name = "..."; then as above, from tenant on
tenant = "acme"
```
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, Field, ValidationError, model_validator

from cluster.errors import SettingsError, plain_reason
from cluster.settings.auth import CallerTenant, ClassName, RoleName
from cluster.settings.load import describe_errors
from cluster.settings.section import PoolName, Section
from router.identity.key import redact

SETTING = "auth.keys_file"
MAX_BYTES = 64 << 20
"""Largest file, some 200,000 keys."""


class _Entry(Section):
    tenant: CallerTenant
    role: RoleName = "user"
    models: tuple[PoolName, ...] | None = None
    classes: tuple[ClassName, ...] | None = None
    not_before: AwareDatetime | None = None
    expires: AwareDatetime | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> _Entry:
        if self.not_before is not None and self.expires is not None and self.expires <= self.not_before:
            raise ValueError(f"expires must be after not_before = {self.not_before}, got {self.expires}")
        return self


class KeyEntry(_Entry):
    """Entry of a key."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]


class CertificateEntry(_Entry):
    """Entry of a name in client certificates. A URI never matches a common name, nor the other way round."""

    common_name: Annotated[str, Field(min_length=1)] | None = None
    uri: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _has_one_name(self) -> CertificateEntry:
        if (self.common_name is None) == (self.uri is None):
            raise ValueError("exactly one of common_name and uri must be given")
        return self

    @property
    def name(self) -> str:
        """Name of the entry in messages."""
        return f"common_name {self.common_name}" if self.uri is None else f"uri {self.uri}"


class KeysFile(Section):
    """Content of the whole file."""

    keys: tuple[KeyEntry, ...] = ()
    certificates: tuple[CertificateEntry, ...] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> KeysFile:
        counts = Counter([*(f"key {entry.id}" for entry in self.keys), *(entry.name for entry in self.certificates)])
        if twice := sorted(name for name, count in counts.items() if count > 1):
            raise ValueError(f"given more than once: {', '.join(twice)}")
        return self

    def entries(self) -> Iterator[KeyEntry | CertificateEntry]:
        """Yield all entries, keys first."""
        yield from self.keys
        yield from self.certificates


def read_keys_file(path: Path) -> KeysFile:
    """Read and check a file.

    Raises:
        SettingsError: the file is wrong. The error names every wrong entry and field, and never a key's hash.
    """
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8-sig") if size <= MAX_BYTES else ""
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{SETTING}: {path} cannot be read: {plain_reason(error)}") from error
    if size > MAX_BYTES:
        raise SettingsError(f"{SETTING}: {path} must have at most {MAX_BYTES} bytes, got {size}")
    try:
        return parse_keys_file(text)
    except SettingsError as error:
        raise SettingsError(f"{SETTING}: {path}: {error}") from None


def parse_keys_file(text: str) -> KeysFile:
    """Read and check a file's content.

    Raises:
        SettingsError: for the reasons of `read_keys_file`.
    """
    try:
        return KeysFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"is not valid TOML: {error}") from None
    except ValidationError as error:
        # Without the cause, because it quotes the file, which may have a key in the wrong place.
        raise SettingsError(redact(describe_errors(error, ("sha256",), KeysFile))) from None
