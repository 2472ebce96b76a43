"""Ids of jobs and files. An id begins with its pool's name and a dot."""

from __future__ import annotations

import re
import secrets

_BETWEEN = "-"
"""What stands between the id of a file and the rest of the id of a job on it."""


_MADE = re.compile(rf"[0-9a-f]{{20}}({_BETWEEN}[0-9a-f]{{20}})?")
"""What follows the pool's name in an id."""


def new_id(pool: str) -> str:
    """Return a new id of a job or file of a pool."""
    return f"{pool}.{secrets.token_hex(10)}"


def id_on(file_id: str) -> str:
    """Return a new id of a job on the items of a file."""
    return f"{file_id}{_BETWEEN}{secrets.token_hex(10)}"


def is_made(job_id: str) -> bool:
    """Return whether an id looks as those that are made here, of a job or file that may be gone."""
    return _MADE.fullmatch(job_id.rpartition(".")[2]) is not None


def pool_of(job_id: str) -> str:
    """Return the name of the pool of a job or file; empty if it can't be an id."""
    return job_id.rpartition(".")[0]


def file_of(job_id: str) -> str:
    """Return the id of the file that a job reads; empty for any other job."""
    # A pool's name may have the same character.
    pool, _, own = job_id.rpartition(".")
    file_id, between, _ = own.partition(_BETWEEN)
    return f"{pool}.{file_id}" if pool and between else ""
