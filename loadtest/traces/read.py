"""The reader of trace files of any known format."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO

from cluster.errors import TraceError, plain_reason
from cluster.plural import counted
from loadtest.traces.formats import FORMATS, FieldError, Fields, Format, TraceLine, shown
from loadtest.traces.request import TraceRequest

__all__ = ["FORMATS", "json_object", "open_trace", "read_trace"]

MOST_S = 10 * 365.25 * 86_400
"""Longest trace in seconds. In a longer one, a time is missing or in another unit. Every second would be simulated."""


def open_trace(path: Path) -> TextIO:
    """Open a trace, also one in a pipe, so that it can be read from its beginning again.

    Raises:
        OSError: it can't be opened.
        UnicodeDecodeError: the content of a pipe is not UTF-8.
    """
    file = path.open(encoding="utf-8-sig", newline="")
    if file.seekable():
        return file
    # A pipe, as `--trace <(zcat trace.csv.gz)` gives.
    with file:
        return io.StringIO(file.read(), newline="")


def read_trace(
    path: Path,
    limit: int | None = None,
    *,
    tell: Callable[[str], None] = lambda _: None,
    file: TextIO | None = None,
) -> list[TraceRequest]:
    """Read a trace: Azure, BurstGPT, Mooncake, or plain CSV or JSONL.

    Plain files have arrival_s, prompt_tokens, output_tokens and, if known, class and tenant. Lines without prompt or
    output tokens are left out: these requests failed or asked for nothing.

    Args:
        path: the file.
        limit: most requests to return, the earliest ones.
        tell: takes a message if some lines are left out.
        file: the result of `open_trace`, where it is open already.

    Raises:
        TraceError: it cannot be read, has no known format, has a wrong value, or no request.
    """
    try:
        with nullcontext(file) if file is not None else open_trace(path) as opened:
            lines = list(_records(path, opened))
    except (OSError, UnicodeDecodeError) as error:
        detail = plain_reason(error) if isinstance(error, OSError) else "is not text in UTF-8"
        raise TraceError(str(path), 0, "", detail) from error
    records = [record for record in lines if record is not None]
    of_all = f"{len(lines) - len(records):,} of {counted(len(lines), 'line has', 'lines have')}"
    left_out = f"{of_all} no prompt or no output tokens"
    if not records:
        raise TraceError(str(path), 0, "", f"has no requests: {left_out}" if lines else "has no requests")
    if len(records) < len(lines):
        tell(f"{path}: {left_out} and are left out")
    records.sort(key=lambda record: record.time_s)
    records = records[:limit]
    first, last = records[0].time_s, records[-1].time_s
    if last - first > MOST_S:
        raise TraceError(
            str(path), 0, "", f"must last {MOST_S:.0f} s (10 years) at most, got arrivals from {first:g} to {last:g} s"
        )
    return [
        TraceRequest(
            number,
            record.time_s - first,
            record.prompt_tokens,
            record.output_tokens,
            record.request_class,
            record.tenant,
            record.session,
            record.block_ids,
            record.block_tokens,
        )
        for number, record in enumerate(records)
    ]


def _records(path: Path, file: TextIO) -> Iterator[TraceLine | None]:
    start = file.read(1)
    while start.isspace():
        start = file.read(1)
    file.seek(0)
    lines = _json_lines(path, file) if start in ("{", "[") else _csv_lines(path, file)
    kind: Format | None = None
    for number, fields in lines:
        kind = kind or _recognise(path, number, fields, json_lines=start == "{")
        for name in kind.needs:
            if fields.get(name) is None:
                raise TraceError(str(path), number, name, "is missing")
        try:
            yield kind.parse(fields)
        except FieldError as error:
            raise TraceError(str(path), number, error.field, error.problem) from error


def _json_lines(path: Path, file: TextIO) -> Iterator[tuple[int, Fields]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        yield number, json_object(path, number, line, "one JSON object per line")


def json_object(path: Path, number: int, text: str, what: str = "one JSON object") -> Fields:
    """Read a JSON object from a file's line, or from the whole file where `number` is 0. Errors call it `what`.

    Raises:
        TraceError: it is no JSON, or another value.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise TraceError(str(path), number, "", f"is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise TraceError(str(path), number, "", f"must be {what}, got {shown(found)}")
    return found


def _csv_lines(path: Path, file: TextIO) -> Iterator[tuple[int, Fields]]:
    rows = csv.reader(file)
    try:
        header: list[str] = []
        for row in rows:
            if len(row) <= 1 and not "".join(row).strip():
                continue
            if not header:
                header = [name.strip() for name in row]
                twice = [name for name, count in Counter(header).items() if name and count > 1]
                if twice:
                    raise TraceError(str(path), rows.line_num, twice[0], "is in the header more than once")
                continue
            if len(row) != len(header):
                raise TraceError(
                    str(path),
                    rows.line_num,
                    "",
                    f"must have {counted(len(header), 'field')} like the header, got {len(row)}",
                )
            yield rows.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise TraceError(str(path), rows.line_num, "", f"is no CSV: {error}") from error


def _recognise(path: Path, line: int, fields: Fields, *, json_lines: bool) -> Format:
    names = set(fields)
    for kind in FORMATS:
        if kind.json_lines == json_lines and kind.needs <= names:
            return kind
    known: Sequence[str] = [f"{kind.name} ({', '.join(sorted(kind.needs))})" for kind in FORMATS]
    found = ", ".join(sorted(names)) or "none"
    raise TraceError(str(path), line, "", f"is of no known format; its fields: {found}; known: {'; '.join(known)}")
