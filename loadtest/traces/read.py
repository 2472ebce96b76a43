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
from loadtest.traces.columns import Trace
from loadtest.traces.formats import FORMATS, FieldError, Fields, Format, TraceLine, shown

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
) -> Trace:
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
            read, left_out = _columns(_records(path, opened))
    except (OSError, UnicodeDecodeError) as error:
        detail = plain_reason(error) if isinstance(error, OSError) else "is not text in UTF-8"
        raise TraceError(str(path), 0, "", detail) from error
    lines = len(read) + left_out
    of_all = f"{left_out:,} of {counted(lines, 'line has', 'lines have')} no prompt or no output tokens"
    if not len(read):
        raise TraceError(str(path), 0, "", f"has no requests: {of_all}" if lines else "has no requests")
    if left_out:
        tell(f"{path}: {of_all} and are left out")
    trace = read.sorted(limit)
    first, last = trace.ends
    if last - first > MOST_S:
        raise TraceError(
            str(path), 0, "", f"must last {MOST_S:.0f} s (10 years) at most, got arrivals from {first:g} to {last:g} s"
        )
    return trace.at_times(lambda time_s: time_s - first)


def _columns(lines: Iterator[TraceLine | None]) -> tuple[Trace, int]:
    """Return what lines have, at the times of the file, and the number of those that are no requests."""
    trace, left_out = Trace(), 0
    for line in lines:
        if line is None:
            left_out += 1
        else:
            rest = (line.request_class, line.tenant, line.session, line.block_ids, line.block_tokens)
            trace.add(line.time_s, line.prompt_tokens, line.output_tokens, rest)
    return trace, left_out


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
