"""Recorded runs of real engines.

A run is a folder with `requests.jsonl` (input_toks, output_toks, queued_ts, first_token_ts, last_token_ts) and
`meta.json` (engine_kwargs, kv_cache), as LLMServingSim records them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from cluster.errors import TraceError, plain_reason
from cluster.settings import SimSettings
from cluster.settings.load import describe_errors
from loadtest.traces import TraceRequest
from loadtest.traces.formats import FieldError, Fields, number, shown, whole
from loadtest.traces.read import json_object

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Requests and times of a real engine. Times in seconds since the first request was queued."""

    trace: Sequence[TraceRequest]
    first_token_s: Sequence[float]
    last_token_s: Sequence[float]
    engine: SimSettings


@dataclass(frozen=True, slots=True)
class _Row:
    prompt_tokens: int
    output_tokens: int
    queued: float
    first_token: float
    last_token: float


def read_run(folder: Path) -> RecordedRun:
    """Read a recorded run.

    Raises:
        TraceError: a file is missing, or a field is missing or wrong.
    """
    meta, requests = folder / "meta.json", folder / "requests.jsonl"
    engine = _checked(meta, 0, _engine, json_object(meta, 0, _text(meta)))
    lines = [(at, line) for at, line in enumerate(_text(requests).split("\n"), start=1) if line.strip()]
    rows = [_checked(requests, at, _row, json_object(requests, at, line)) for at, line in lines]
    if not rows:
        raise TraceError(str(requests), 0, "", "has no requests")
    rows.sort(key=lambda row: row.queued)
    for row in rows:
        # The context of the last token is never computed.
        held = row.prompt_tokens + row.output_tokens - 1
        if math.ceil(held / engine.block_size) > engine.kv_tokens // engine.block_size:
            raise TraceError(
                str(requests), 0, "input_toks",
                f"and output_toks of the request that was queued at {row.queued} need {held} tokens"
                f" of KV cache, but meta.json has {engine.kv_tokens}",
            )  # fmt: skip
    start = rows[0].queued
    return RecordedRun(
        [TraceRequest(n, row.queued - start, row.prompt_tokens, row.output_tokens) for n, row in enumerate(rows)],
        [row.first_token - start for row in rows],
        [row.last_token - start for row in rows],
        engine,
    )


def _row(fields: Fields) -> _Row:
    prompt, output = whole(fields, "input_toks", 1), whole(fields, "output_toks", 1)
    queued, first, last = (number(fields, name, 0) for name in ("queued_ts", "first_token_ts", "last_token_ts"))
    if first <= queued:
        raise FieldError("first_token_ts", f"must be after queued_ts = {queued}, got {first}")
    if last < first:
        raise FieldError("last_token_ts", f"must not be before first_token_ts = {first}, got {last}")
    return _Row(prompt, output, queued, first, last)


def _engine(meta: Fields) -> SimSettings:
    kwargs, cache = _section(meta, "engine_kwargs"), _section(meta, "kv_cache")
    block_size = whole(cache, "block_size", 1)
    if cache.get("num_kv_tokens"):
        kv_tokens = whole(cache, "num_kv_tokens", 1)
    else:
        kv_tokens = whole(cache, "num_gpu_blocks", 1) * block_size
    engine = SimSettings(
        kv_tokens=kv_tokens,
        block_size=block_size,
        max_num_seqs=whole(kwargs, "max_num_seqs", 1),
        max_num_batched_tokens=whole(kwargs, "max_num_batched_tokens", 1),
        max_model_len=whole(kwargs, "max_model_len", 1),
    )
    sequences, budget = engine.max_num_seqs, engine.max_num_batched_tokens
    if budget < sequences:
        raise FieldError("max_num_batched_tokens", f"must be at least max_num_seqs = {sequences}, got {budget}")
    return engine


def _section(meta: Fields, name: str) -> Fields:
    if not isinstance(meta[name], dict):
        raise FieldError(name, f"must be a JSON object, got {shown(meta[name])}")
    return dict(meta[name])


def _checked(path: Path, line: int, read: Callable[[Fields], T], fields: Fields) -> T:
    try:
        return read(fields)
    except KeyError as error:
        raise TraceError(str(path), line, str(error.args[0]), "is missing") from error
    except FieldError as error:
        raise TraceError(str(path), line, error.field, error.problem) from error
    except ValidationError as error:
        raise TraceError(str(path), line, "", describe_errors(error)) from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TraceError(str(path), 0, "", plain_reason(error)) from error
    except UnicodeDecodeError as error:
        raise TraceError(str(path), 0, "", "is not text in UTF-8") from error
