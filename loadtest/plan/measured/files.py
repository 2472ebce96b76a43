"""Files of points: the results of load testing tools, as they write them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.control.step_model import Shape
from cluster.errors import SettingsError, plain_reason
from loadtest.plan.engine.points import Point, read_points
from loadtest.plan.engine.precision import precision_of

_MOST = 1e9


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """The engine that points are of. Empty values are not known."""

    model: str = ""
    gpu: str = ""
    tensor_parallel: int = 0
    precision: str = ""
    version: str = ""
    """Of the engine's software."""
    pipeline_parallel: int = 0
    data_parallel: int = 0
    kv_element_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class OwnPoint:
    """One measurement, and where it comes from. Times in seconds, means over requests; NaN where not measured."""

    shape: Shape
    clients: int
    """Requests under way in all groups and stages, in the mean where they come at a rate."""
    tpot_s: float
    ttft_s: float
    source: str
    """Tool and file."""
    engine: OwnEngine = OwnEngine()


def read_own(path: Path) -> list[OwnPoint]:
    """Read points: JSON of vLLM bench, guidellm, AIPerf, inference-perf or a load test of Penstock, or a CSV file with
    the columns of `--check-points`.

    Raises:
        SettingsError: the file cannot be read, is of no known tool, has a wrong value, or no point.
        TraceError: the CSV file lacks a column, or has a wrong value.
    """
    points = _read(path)
    if not points:
        raise SettingsError(f"points: {path} has no measured point")
    return points


def _read(path: Path) -> list[OwnPoint]:
    if path.suffix.lower() == ".csv":
        points = (_of_csv(path, each) for each in read_points(path))
        return [each for each in points if not (math.isnan(each.tpot_s) and math.isnan(each.ttft_s))]
    return [point for data in _objects(path) for point in _of_tool(path, data)]


def _objects(path: Path) -> list[Mapping[str, Any]]:
    """Return the objects in a file: one, or one a line, as vLLM bench appends them (`--append-result`).

    Raises:
        SettingsError: the file cannot be read, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        try:
            found = [json.loads(text)]
        except json.JSONDecodeError as error:
            if error.msg != "Extra data":
                raise
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise SettingsError(f"points: {path} cannot be read: {plain_reason(error)}") from error
    if not all(isinstance(each, Mapping) for each in found):
        raise SettingsError(f"points: {path} must hold one JSON object, or one a line")
    return found


def _of_tool(path: Path, data: Mapping[str, Any]) -> list[OwnPoint]:
    for tool, is_it, read in _TOOLS:
        if is_it(data):
            _check_schema(path, tool, data)
            return [read(_Fields(path, tool, part)) for part in _parts(tool, data)]
    tools = ", ".join(tool for tool, _, _ in _TOOLS)
    raise SettingsError(f"points: {path} is of no known tool; known are {tools}, and a CSV of points")


def _of_csv(path: Path, point: Point) -> OwnPoint:
    config = point.config
    try:
        # Where it is not told, others say it.
        precision = precision_of(config.precision) if config.precision.strip() else ""
    except SettingsError as error:
        raise SettingsError(f"points: {path}: {error}") from None
    engine = OwnEngine(
        config.model, config.system, config.tensor_parallel, precision, point.version, point.stages, config.groups,
        config.kv_element_bytes if point.cache_told else 0.0,
    )  # fmt: skip
    clients = point.clients * config.groups
    return OwnPoint(point.shape, clients, point.tpot_s, point.ttft_s, f"CSV {path.name}", engine)


def _parts(tool: str, data: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Return the measurements in a file. guidellm writes a sweep into one."""
    if tool == "guidellm":
        return [each for each in data["benchmarks"] if isinstance(each, Mapping)]
    return [data]


def _check_schema(path: Path, tool: str, data: Mapping[str, Any]) -> None:
    """Refuse a format of a version that nothing is known of.

    Raises:
        SettingsError: it is one.
    """
    metadata = data.get("metadata")
    version = metadata.get("version") if isinstance(metadata, Mapping) else None
    if tool == "guidellm" and version is not None and version not in _GUIDELLM_SCHEMAS:
        known = " or ".join(str(each) for each in _GUIDELLM_SCHEMAS)
        raise SettingsError(f"points: {path}: metadata.version must be {known}, got {version!r}")


@dataclass(frozen=True, slots=True)
class _Fields:
    """One measurement in a file."""

    path: Path
    tool: str
    data: Mapping[str, Any]

    def get(self, *place: str) -> Any:
        """Return a value at a place, or None."""
        value: Any = self.data
        for each in place:
            value = value.get(each) if isinstance(value, Mapping) else None
        return value

    def number(self, *place: str) -> float:
        """Return a number above 0.

        Raises:
            SettingsError: it is missing or another value.
        """
        value = self.get(*place)
        if not _is_number(value) or not 0 < value < _MOST:
            where = ".".join(place)
            raise SettingsError(f"points: {self.path}: {where} must be a number above 0, got {value!r}")
        return float(value)

    def perhaps(self, *place: str) -> float:
        """Return a number above 0, or NaN."""
        value = self.get(*place)
        return float(value) if _is_number(value) and 0 < value < _MOST else math.nan

    def text(self, *place: str) -> str:
        """Return a text, or an empty one."""
        value = self.get(*place)
        return value if isinstance(value, str) else ""

    def refuse(self, reason: str, *place: str) -> None:
        """Refuse a file in which a place has a value.

        Raises:
            SettingsError: it has one.
        """
        if self.get(*place) is not None:
            raise SettingsError(f"points: {self.path}: {'.'.join(place)} is {self.get(*place)!r}: {reason}")

    def point(self, shape: Shape, clients: float, tpot_s: float, ttft_s: float, engine: OwnEngine) -> OwnPoint:
        """Return the point, with its clients by Little's law where there is no number of them.

        Raises:
            SettingsError: neither the time per token nor the time to the first one was measured.
        """
        if math.isnan(tpot_s) and math.isnan(ttft_s):
            raise SettingsError(f"points: {self.path} has neither a time per token nor one to the first token")
        if not clients > 0:
            raise SettingsError(f"points: {self.path} does not tell how many requests were under way")
        return OwnPoint(shape, max(1, round(clients)), tpot_s, ttft_s, f"{self.tool} {self.path.name}", engine)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


_LARGEST = sys.float_info.max
"""Largest number. JSON has whole ones beyond it, and others that are none."""


def under_way(rate: float, shape: Shape, tpot_s: float, ttft_s: float) -> float:
    """Return the mean number of requests under way at a rate, by Little's law."""
    return rate * (ttft_s + tpot_s * max(0.0, shape.output_tokens - 1))


_DRAFTS = "points of speculative decoding say nothing of steps"


def _vllm(fields: _Fields) -> OwnPoint:
    fields.refuse(_DRAFTS, "spec_decode_acceptance_length")
    done = fields.number("completed")
    shape = Shape(fields.number("total_input_tokens") / done, fields.number("total_output_tokens") / done)
    tpot, ttft = fields.perhaps("mean_tpot_ms") / 1e3, fields.perhaps("mean_ttft_ms") / 1e3
    clients = fields.perhaps("max_concurrency")
    # At a rate the concurrency is a cap on what comes.
    if math.isnan(clients) or not math.isnan(fields.perhaps("request_rate")):
        came = under_way(done / fields.number("duration"), shape, tpot, ttft)
        clients = came if math.isnan(clients) else min(clients, came)
    engine = OwnEngine(
        fields.text("model_id"),
        tensor_parallel=_size(fields, "tensor"),
        version=fields.text("vllm_version"),
        pipeline_parallel=_size(fields, "pipeline"),
        data_parallel=_size(fields, "data"),
    )
    return fields.point(shape, min(clients, done), tpot, ttft, engine)


def _size(fields: _Fields, kind: str) -> int:
    # What `--metadata` adds are texts.
    text = str(fields.get(f"{kind}_parallel_size") or "")
    return int(text) if text.isdecimal() else 0


_GUIDELLM_SCHEMAS = (1, 2)


def _guidellm(fields: _Fields) -> OwnPoint:
    def mean(name: str, needed: bool = False) -> float:
        place = ("metrics", name, "successful", "mean")
        return fields.number(*place) if needed else fields.perhaps(*place)

    shape = Shape(mean("prompt_token_count", True), mean("output_token_count", True))
    # Its time per output token counts the first one too.
    tpot, ttft = mean("inter_token_latency_ms") / 1e3, mean("time_to_first_token_ms") / 1e3
    clients = mean("request_concurrency")
    if math.isnan(clients):
        clients = under_way(mean("requests_per_second", True), shape, tpot, ttft)
    model = fields.text("worker", "backend_model") or fields.text("config", "backend", "model")
    return fields.point(shape, clients, tpot, ttft, OwnEngine(model))


_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}


def _aiperf(fields: _Fields) -> OwnPoint:
    inner = fields.get("records")
    part = _Fields(fields.path, fields.tool, inner) if isinstance(inner, Mapping) else fields

    def seconds(name: str) -> float:
        unit = part.text(name, "unit") or "ms"
        if unit not in _UNITS:
            known = ", ".join(_UNITS)
            raise SettingsError(f"points: {fields.path}: {name}.unit must be one of {known}, got {unit!r}")
        return part.perhaps(name, "avg") * _UNITS[unit]

    version = fields.get("schema_version")
    if version is not None and str(version).partition(".")[0] != "1":
        raise SettingsError(f"points: {fields.path}: schema_version must be 1 and a minor one, got {version!r}")
    shape = Shape(part.number("input_sequence_length", "avg"), part.number("output_sequence_length", "avg"))
    # Its first version called the tag of a first token "ttft".
    first = "time_to_first_token" if part.get("time_to_first_token") is not None else "ttft"
    tpot, ttft = seconds("inter_token_latency"), seconds(first)
    clients, model = _aiperf_config(fields)
    rate = part.perhaps("request_throughput", "avg")
    if math.isnan(clients):
        clients = under_way(part.number("request_throughput", "avg"), shape, tpot, ttft)
    elif not math.isnan(rate):
        # A rate beside it makes the concurrency a cap.
        clients = min(clients, max(1.0, under_way(rate, shape, tpot, ttft)) * _SLACK)
    return fields.point(shape, clients, tpot, ttft, OwnEngine(model))


_SLACK = 1.1
"""Requests under way by the rate may be this factor too few, because a run's last ones leave the engine empty."""


def _aiperf_config(fields: _Fields) -> tuple[float, str]:
    """Return concurrency and model in `input_config`: of versions up to 0.8 by flags, later by phases."""
    config = fields.get("input_config")
    where = _Fields(fields.path, fields.tool, config if isinstance(config, Mapping) else fields.data)
    listed = where.get("phases")
    phases = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    measured = [each for each in phases if not each.get("exclude_from_results") and each.get("name") != "warmup"]
    if phases:
        concurrency = _Fields(fields.path, fields.tool, measured[-1] if measured else {}).perhaps("concurrency")
    else:
        concurrency = where.perhaps("loadgen", "concurrency")
    names = where.get("endpoint", "model_names") or where.get("models", "items") or where.get("models")
    first = names[0] if isinstance(names, list) and names else names
    model = first.get("name") if isinstance(first, Mapping) else first
    return concurrency, model if isinstance(model, str) else ""


def _inference_perf(fields: _Fields) -> OwnPoint:
    good = "successes"
    # Newer versions count a prompt's tokens in "prompt_tokens", with those from the server's cache.
    prompts = (good, "prompt_len") if fields.get(good, "prompt_len") is not None else (good, "prompt_tokens")
    prompt, output = fields.number(*prompts, "mean"), fields.number(good, "output_len", "mean")
    total = fields.perhaps(*prompts, "total")
    cached = fields.perhaps(*prompts, "cached")
    part = cached / total if cached > 0 and total > 0 else 0.0
    shape = Shape(prompt, output, part * prompt)
    ttft = fields.perhaps(good, "latency", "time_to_first_token", "mean")
    whole = fields.perhaps(good, "latency", "request_latency", "mean")
    # Its time per token is that between messages, of which a server may send two per token or one for several.
    tpot = (whole - ttft) / (output - 1) if output > 1 else math.nan
    if not tpot > 0:
        tpot = fields.perhaps(good, "latency", "time_per_output_token", "mean")
    clients = fields.perhaps("load_summary", "concurrency")
    if math.isnan(clients):
        rate = fields.perhaps(good, "throughput", "requests_per_sec")
        if math.isnan(rate):
            rate = fields.number("load_summary", "achieved_rate")
        clients = under_way(rate, shape, tpot, ttft)
    return fields.point(shape, clients, tpot, ttft, OwnEngine())


def _penstock(fields: _Fields) -> OwnPoint:
    inner = fields.get("summary")
    part = _Fields(fields.path, fields.tool, inner) if isinstance(inner, Mapping) else fields
    done = part.number("completed")
    prompt, cached = part.number("prompt_tokens") / done, part.perhaps("cached_tokens") / done
    shape = Shape(prompt, part.number("output_tokens") / done, min(cached, prompt) if cached > 0 else 0.0)
    tpot, ttft = part.perhaps("tpot_s", "mean"), part.perhaps("ttft_s", "mean")
    clients = under_way(done / part.number("seconds"), shape, tpot, ttft)
    return fields.point(shape, clients, tpot, ttft, OwnEngine())


def _part(data: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return the object within a result that has its figures; the result itself where there is none."""
    inner = data.get(field)
    return inner if isinstance(inner, Mapping) and inner else data


_TOOLS: Sequence[tuple[str, Callable[[Mapping[str, Any]], bool], Callable[[_Fields], OwnPoint]]] = (
    ("vLLM bench", lambda data: "mean_ttft_ms" in data and "total_input_tokens" in data, _vllm),
    ("guidellm", lambda data: isinstance(data.get("benchmarks"), list), _guidellm),
    ("AIPerf", lambda data: "input_sequence_length" in _part(data, "records"), _aiperf),
    ("inference-perf", lambda data: "successes" in data, _inference_perf),
    ("Penstock", lambda data: "ttft_s" in _part(data, "summary"), _penstock),
)
