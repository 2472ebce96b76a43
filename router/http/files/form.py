"""Upload forms: multipart bodies whose file passes through in chunks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from penstock.values.objects import BodyError
from router.http.calls import check_encoding, content_type

_MULTIPART = "multipart/form-data"
_CHUNK_BYTES = 64 << 10
_MAX_FIELD_BYTES = 4_096
_MAX_FIELDS = 32
_MAX_NAME = 255
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_MALFORMED = (ValueError, AssertionError, HttpProcessingError)
"""What the reader of forms raises where one is broken; the last is for headers of parts."""


class Intake(Protocol):
    """What takes a form's file."""

    async def add(self, data: bytes) -> None:
        """Take the next bytes."""
        ...


@dataclass(frozen=True, slots=True)
class UploadForm:
    """Fields of a form."""

    filename: str
    expires_after_s: int | None
    """Seconds; None where the client does not say."""


async def read_form(request: web.Request, intake: Intake, pause_s: float) -> UploadForm:
    """Read a form and pass its file on as it comes.

    Args:
        request: the upload.
        intake: what takes the file.
        pause_s: longest time for which the client may be silent.

    Raises:
        BodyError: the body is no such form, a field is missing or wrong, or the client was silent for too long.
    """
    if request.content_type != _MULTIPART:
        raise BodyError("", f"must have the content type {_MULTIPART}, got {content_type(request)}")
    check_encoding(request)
    try:
        return await _read(request, intake, pause_s)
    except TimeoutError:
        raise BodyError("file", f"must come with pauses of at most {pause_s:g} s (jobs.upload_s)") from None


async def _read(request: web.Request, intake: Intake, pause_s: float) -> UploadForm:
    fields: dict[str, str] = {}
    filename: str | None = None
    async for part in _parts(request, pause_s):
        if part.name == "file":
            if filename is not None:
                raise BodyError("file", "must be there once")
            filename = _unicode(part.filename or "file.jsonl")[:_MAX_NAME]
            async for data in _chunks(part, pause_s):
                await intake.add(data)
        elif part.name and len(fields) < _MAX_FIELDS:
            fields[part.name] = await _text(part, pause_s)
        else:
            raise BodyError("", f"must have parts with names, and at most {_MAX_FIELDS} besides the file")
    if filename is None:
        raise BodyError("file", "is required")
    if (purpose := fields.get("purpose")) != "batch":
        raise BodyError("purpose", "is required" if purpose is None else f"must be batch, got {purpose[:40]!r}")
    return UploadForm(filename, _expires(fields))


async def _parts(request: web.Request, pause_s: float) -> AsyncIterator[BodyPartReader]:
    reader = None
    while True:
        try:
            reader = reader or await request.multipart()
            async with asyncio.timeout(pause_s):
                part = await reader.next()
        except _MALFORMED as error:
            raise _malformed(error) from None
        if part is None:
            return
        if not isinstance(part, BodyPartReader):
            raise BodyError("", "must have no form within the form")
        yield part


async def _chunks(part: BodyPartReader, pause_s: float) -> AsyncIterator[bytes]:
    encoding = part.headers.get("Content-Transfer-Encoding", "binary").lower()
    if encoding not in ("binary", "8bit", "7bit"):
        raise BodyError("file", f"must have no transfer encoding, got {encoding[:40]!r}")
    while True:
        try:
            async with asyncio.timeout(pause_s):
                data = await part.read_chunk(_CHUNK_BYTES)
        except _MALFORMED as error:
            raise _malformed(error) from None
        if not data:
            return
        yield data


async def _text(part: BodyPartReader, pause_s: float) -> str:
    value = b""
    async for data in _chunks(part, pause_s):
        value += data
        if len(value) > _MAX_FIELD_BYTES:
            raise BodyError((part.name or "")[:40], f"must have at most {_MAX_FIELD_BYTES:,} bytes")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BodyError((part.name or "")[:40], "must be UTF-8") from None


def _unicode(name: str) -> str:
    """Return a name without bytes of another encoding, which some systems have in names of files."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def _expires(fields: dict[str, str]) -> int | None:
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise BodyError("expires_after.anchor", f"must be created_at, got {anchor!r}")
    if seconds is None or not _WHOLE.fullmatch(seconds):
        raise BodyError("expires_after.seconds", f"must be a whole number, got {seconds!r}")
    return int(seconds)


def _malformed(error: Exception) -> BodyError:
    return BodyError("", f"must be a whole form with its last boundary: {error}")
