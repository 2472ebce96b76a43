"""Names and dates of certificates."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Validity:
    """What a certificate says of itself."""

    names: tuple[str, ...]
    """Its subject alternative names."""
    begins: datetime.datetime
    ends: datetime.datetime

    def problem(self, now: datetime.datetime) -> str:
        """Return why its time is not now and what to do about it; empty if it is."""
        if now < self.begins:
            return f"is valid only from {shown(self.begins)} on: correct the clock, or give another certificate"
        if now >= self.ends:
            return f"was valid until {shown(self.ends)}: put a new one there; it is read again by itself"
        return ""


def shown(at: datetime.datetime) -> str:
    """Write a time for people."""
    return f"{at:%Y-%m-%d %H:%M} UTC"


def read_validity(path: Path) -> Validity | None:
    """Read names and dates of the first certificate of a file; None where they can't be read."""
    try:
        # Python has no public reader of a certificate that no peer shows. This one is in every version of it.
        found: Mapping[str, Any] = ssl._ssl._test_decode_cert(str(path.expanduser()))  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return None
    begins, ends = (
        datetime.datetime.fromtimestamp(ssl.cert_time_to_seconds(found[key]), datetime.UTC)
        for key in ("notBefore", "notAfter")
    )
    return Validity(tuple(value for _kind, value in found.get("subjectAltName", ())), begins, ends)
