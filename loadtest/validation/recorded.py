"""Recorded runs of real engines.

A run is a folder with `requests.jsonl` (input_toks, output_toks, queued_ts, first_token_ts, last_token_ts, and where
known scheduled_ts) and `meta.json` (engine_kwargs, kv_cache, and where known hardware), as LLMServingSim records them.
Older recorders leave out `kv_cache`, which flags then tell, as they do limits that were left to the engine, and have no
number for max_model_len.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from cluster.errors import TraceError, plain_reason
from cluster.settings import SimSettings
from cluster.settings.load import describe_errors
from loadtest.traces import TraceRequest
from loadtest.traces.formats import FieldError, Fields, number, shown, whole
from loadtest.traces.read import json_object

T = TypeVar("T")

_BLOCK = 16
"""Tokens per block of vLLM's KV cache where a run does not tell it."""
_LEAST_CONTEXT = 16
"""Least that the settings of an engine take."""


@dataclass(frozen=True, slots=True)
class FilledIn:
    """What flags say of a run whose recorder left it out. 0 is not said."""

    kv_tokens: int = 0
    """Of each data parallel rank."""
    max_model_len: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ranks:
    """How an engine is split."""

    tensor_parallel: int = 1
    data_parallel: int = 1
    """Ranks that each have their own batch and KV cache."""
    expert_parallel: bool = False
    """Whether ranks share the experts, so that their steps are in lock-step."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Requests and times of a real engine. Times in seconds since the first request was queued."""

    trace: Sequence[TraceRequest]
    first_token_s: Sequence[float]
    last_token_s: Sequence[float]
    engine: SimSettings
    """Of one data parallel rank."""
    scheduled_s: Sequence[float] = ()
    """Empty where it was not recorded."""
    ranks: Ranks = field(default_factory=Ranks)
    model: str = ""
    """Model's id; empty where it was not recorded, as `gpu`, `precision` and `version`."""
    gpu: str = ""
    """Name as the driver prints it."""
    precision: str = ""
    """How the engine was told to quantize the weights."""
    version: str = ""
    told: FilledIn = field(default_factory=FilledIn)
    """What flags filled in."""


@dataclass(frozen=True, slots=True)
class _Row:
    prompt_tokens: int
    output_tokens: int
    queued: float
    first_token: float
    last_token: float
    scheduled: float


def read_run(folder: Path, told: FilledIn | None = None) -> RecordedRun:
    """Read a recorded run.

    Raises:
        TraceError: a file is missing, or a field is missing or wrong.
    """
    meta, requests = folder / "meta.json", folder / "requests.jsonl"
    fields = json_object(meta, 0, _text(meta))
    lines = [(at, line) for at, line in enumerate(_text(requests).split("\n"), start=1) if line.strip()]
    rows = [_checked(requests, at, _row, json_object(requests, at, line)) for at, line in lines]
    # What is wrong with the engine is said first.
    longest = max((row.prompt_tokens + row.output_tokens for row in rows), default=_LEAST_CONTEXT)
    engine, ranks, filled = _checked(meta, 0, lambda found: _engine(found, told or FilledIn(), longest), fields)
    if not rows:
        raise TraceError(str(requests), 0, "", "has no requests")
    rows.sort(key=lambda row: row.queued)
    for row in rows:
        # The context of the last token is never computed.
        held = row.prompt_tokens + row.output_tokens - 1
        if math.ceil(held / engine.block_size) > engine.kv_tokens // engine.block_size:
            source = "--kv-tokens says" if filled.kv_tokens else "meta.json has"
            raise TraceError(
                str(requests), 0, "input_toks",
                f"and output_toks of the request that was queued at {row.queued} need {held} tokens"
                f" of KV cache, but {source} {engine.kv_tokens}",
            )  # fmt: skip
    start = rows[0].queued
    kwargs, hardware = _part(fields, "engine_kwargs"), _part(fields, "hardware")
    scheduled = [row.scheduled - start for row in rows]
    return RecordedRun(
        [TraceRequest(n, row.queued - start, row.prompt_tokens, row.output_tokens) for n, row in enumerate(rows)],
        [row.first_token - start for row in rows],
        [row.last_token - start for row in rows],
        engine,
        () if any(math.isnan(each) for each in scheduled) else scheduled,
        ranks,
        _words(kwargs, "model") or _words(fields, "model"),
        _words(hardware, "device_name"),
        _words(kwargs, "quantization"),
        _words(fields, "vllm_version"),
        filled,
    )


def _row(fields: Fields) -> _Row:
    prompt, output = whole(fields, "input_toks", 1), whole(fields, "output_toks", 1)
    queued, first, last = (number(fields, name, 0) for name in ("queued_ts", "first_token_ts", "last_token_ts"))
    if first <= queued:
        raise FieldError("first_token_ts", f"must be after queued_ts = {queued}, got {first}")
    if last < first:
        raise FieldError("last_token_ts", f"must not be before first_token_ts = {first}, got {last}")
    scheduled = math.nan if fields.get("scheduled_ts") is None else number(fields, "scheduled_ts", 0)
    if not math.isnan(scheduled) and not queued <= scheduled <= first:
        raise FieldError(
            "scheduled_ts", f"must be from queued_ts = {queued} to first_token_ts = {first}, got {scheduled}"
        )
    return _Row(prompt, output, queued, first, last, scheduled)


def _engine(meta: Fields, told: FilledIn, longest: int) -> tuple[SimSettings, Ranks, FilledIn]:
    kwargs = _section(meta, "engine_kwargs")
    (kv_tokens, block_size), cached = _kv_cache(meta), True
    if not kv_tokens:
        kv_tokens, cached = told.kv_tokens, False
    if not kv_tokens:
        lacks = "is missing" if meta.get("kv_cache") is None else "has neither num_kv_tokens nor num_gpu_blocks"
        raise FieldError("kv_cache", f"{lacks}; say how many tokens fit with --kv-tokens")
    given = kwargs.get("max_model_len") is not None
    # A run that was served tells that its longest request fits.
    length = whole(kwargs, "max_model_len", 1) if given else max(_LEAST_CONTEXT, told.max_model_len or longest)
    engine = SimSettings(
        kv_tokens=kv_tokens,
        block_size=block_size,
        max_num_seqs=_limit(kwargs, "max_num_seqs", told.max_num_seqs),
        max_num_batched_tokens=_limit(kwargs, "max_num_batched_tokens", told.max_num_batched_tokens),
        max_model_len=length,
    )
    sequences, budget = engine.max_num_seqs, engine.max_num_batched_tokens
    if budget < sequences:
        raise FieldError("max_num_batched_tokens", f"must be at least max_num_seqs = {sequences}, got {budget}")
    if _perhaps(kwargs, "pipeline_parallel_size") > 1:
        stages = kwargs["pipeline_parallel_size"]
        raise FieldError(
            "pipeline_parallel_size", f"must be 1, because stages of a pipeline are not simulated, got {stages}"
        )
    expert = kwargs.get("enable_expert_parallel")
    if expert is not None and not isinstance(expert, bool):
        raise FieldError("enable_expert_parallel", f"must be true or false, got {shown(expert)}")
    ranks = Ranks(_perhaps(kwargs, "tensor_parallel_size"), _perhaps(kwargs, "data_parallel_size"), bool(expert))
    filled = FilledIn(
        0 if cached else told.kv_tokens,
        0 if given else told.max_model_len,
        told.max_num_seqs if kwargs.get("max_num_seqs") is None else 0,
        told.max_num_batched_tokens if kwargs.get("max_num_batched_tokens") is None else 0,
    )
    return engine, ranks, filled


def _limit(kwargs: Fields, name: str, told: int) -> int:
    """Return a limit of the engine: the recorded one, else that of a flag."""
    if kwargs.get(name) is not None:
        return whole(kwargs, name, 1)
    if not told:
        raise FieldError(name, f"is missing; say it with --{name.replace('_', '-')}")
    return told


def _kv_cache(meta: Fields) -> tuple[int, int]:
    """Return the tokens of a rank's KV cache, 0 where it is not told, and of a block."""
    if meta.get("kv_cache") is None:
        return 0, _BLOCK
    cache = _section(meta, "kv_cache")
    block_size = _BLOCK if cache.get("block_size") is None else whole(cache, "block_size", 1)
    for name, each in (("num_kv_tokens", 1), ("num_gpu_blocks", block_size)):
        if cache.get(name):
            return whole(cache, name, 1) * each, block_size
    return 0, block_size


def _perhaps(fields: Fields, name: str) -> int:
    """Return a whole number, 1 where there is none."""
    return 1 if fields.get(name) is None else whole(fields, name, 1)


def _section(meta: Fields, name: str) -> Fields:
    if not isinstance(meta[name], dict):
        raise FieldError(name, f"must be a JSON object, got {shown(meta[name])}")
    return dict(meta[name])


def _part(meta: Fields, name: str) -> Mapping[str, Any]:
    found = meta.get(name)
    return found if isinstance(found, dict) else {}


def _words(fields: Mapping[str, Any], name: str) -> str:
    found = fields.get(name)
    return found if isinstance(found, str) else ""


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
