"""Ids of files and batches as clients see them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.jobs.ids import file_of

_FILE, _BATCH = "file-", "batch_"
OUTPUT, ERRORS = "output", "errors"
"""Names of a batch's files of results."""


@dataclass(frozen=True, slots=True)
class FileId:
    """What an id of a file names."""

    job_id: str
    """Id in the store: of the uploaded file, or of the batch with these results."""
    results: str = ""
    """OUTPUT or ERRORS; empty for an uploaded file."""

    def __str__(self) -> str:
        return f"{_FILE}{self.job_id}{'-' if self.results else ''}{self.results}"

    @classmethod
    def parse(cls, text: str) -> FileId | None:
        """Read an id; None if it can't be one."""
        if not text.startswith(_FILE):
            return None
        job_id = text.removeprefix(_FILE)
        for name in (OUTPUT, ERRORS):
            if job_id.endswith(f"-{name}"):
                job_id = job_id.removesuffix(f"-{name}")
                return cls(job_id, name) if file_of(job_id) else None
        return None if file_of(job_id) else cls(job_id)


def batch_id(job_id: str) -> str:
    """Return the id of a batch for clients."""
    return f"{_BATCH}{job_id}"


def job_of(batch: str) -> str:
    """Return the id of a batch in the store; empty if it can't be one."""
    job_id = batch.removeprefix(_BATCH)
    return job_id if batch.startswith(_BATCH) and file_of(job_id) else ""
