"""Checks of names before they are stored."""

from __future__ import annotations

import re

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def check_names(job_id: str, tenant: str) -> None:
    """Raise ValueError if an id or a tenant's name cannot be a part of a key or member."""
    if not _ID.fullmatch(job_id):
        raise ValueError(f"a job's id must be 1 to 128 of A-Z a-z 0-9 . _ -, got {job_id!r}")
    if not tenant or "\0" in tenant:
        raise ValueError("tenant must not be empty or contain NUL")
