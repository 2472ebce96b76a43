"""Points that others measured, and the prior's score on them."""

from __future__ import annotations

import csv
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cluster.control.step_model import Shape
from cluster.errors import SettingsError, TraceError, plain_reason
from loadtest.plan.engine.architectures import find_shape
from loadtest.plan.engine.gpus import Gpu, find_gpu
from loadtest.plan.engine.memory import Sizing, size
from loadtest.plan.engine.precision import precision_of
from loadtest.plan.engine.prior import Coefficients, FirstTokens, StepPrior, prior
from loadtest.plan.engine.shapes import ModelShape
from loadtest.plan.engine.steady import Steady, steady

SEEN = {
    *((name, precision) for name in ("llama-3-70b", "llama-3.1-70b", "llama-3.3-70b") for precision in ("fp8", "fp4")),
    ("qwen3-32b", "bf16"), ("gpt-oss-120b", "mxfp4"), ("gpt-oss-120b", "fp4"), ("minimax-m2", "fp8"),
    ("minimax-m2", "fp4"), ("kimi-k2.5", "int4"), ("kimi-k2.5", "fp4"), ("kimi-k2-thinking", "int4"),
}  # fmt: skip
"""Models and precisions among the points of the fit, and models of the same architecture."""
DEVIATION = math.sqrt(math.pi / 2)
"""Standard deviation over the mean error of a normal distribution."""
Z_90 = 1.645
"""Half of the range that holds 90 % of a normal distribution, in standard deviations."""
_MORE = "values without a column"
_NOTHING = ("", "nan", "none", "null", "0", "0.0")
_CACHES = {"": 2.0, "auto": 2.0, "bf16": 2.0, "bfloat16": 2.0, "fp16": 2.0, "float16": 2.0, "half": 2.0, "fp8": 1.0}
MOST_SEQUENCES = 1 << 20
COLUMNS = (
    "model_path", "system", "precision", "isl", "osl", "batch_size", "tp_size", "silicon_ttft_ms", "silicon_tpot_ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Config:
    """An engine that was measured."""

    model: str
    system: str
    precision: str
    tensor_parallel: int
    """Accelerators that split each layer's attention."""
    groups: int = 1
    """Groups with attention of their own that share the experts."""
    kv_element_bytes: float = 2.0

    @property
    def split(self) -> str:
        """The number of accelerators, and how the model is split over them in words."""
        shared = f" DP {self.groups}" if self.groups > 1 else ""
        return f"{self.tensor_parallel}{shared}{', fp8 KV' if self.kv_element_bytes < 2 else ''}"


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement of a closed loop. Times in seconds; NaN where not measured."""

    config: Config
    shape: Shape
    clients: int
    """Of each group."""
    ttft_s: float
    tpot_s: float
    layout: str = ""
    """Reason why it can't be scored: a split beside tensor parallelism, or a missing value. Empty for none."""
    version: str = ""
    """Version of the engine, where the file tells it."""
    cache_told: bool = False
    """Whether the file tells the data type of the KV cache."""
    batch_limit: int = MOST_SEQUENCES
    """Batch limit of the engine, where it is lower than vLLM's own."""
    stages: int = 1
    """Pipeline stages."""

    @property
    def odd(self) -> bool:
        """Whether it contradicts other points by a factor. Such points are scored and not fitted.

        - vLLM 0.12 on small models in fp8, on Qwen3-235B, and single points. By Little's law Llama-3.1-8B on two H200
          would compute its prompts at 72 % of the peak beside its decodes, where no other dense engine exceeds 44 %;
          and Qwen3-32B in fp8 would read weights and a cache of 16 bits in less than the memory's bandwidth allows;
        - MiniMax on B200 with vLLM 0.17, whose recipe switched two kinds of fast kernels for experts off;
        - 512 clients of gpt-oss on H100: their engine had a batch limit that the file does not tell.
        """
        name, version = self.config.model.lower(), self.version
        if "gpt-oss" in name and "h100" in self.config.system.lower() and self.clients >= 512:
            return True
        slow_experts = "minimax" in name and version.startswith("0.17.")
        old = any(each in name for each in ("llama-3.1-8b", "qwen3-32b", "qwen3-235b"))
        return self.config.precision == "fp8" and (slow_experts or old)


@dataclass(frozen=True, slots=True)
class Known:
    """A config with a known model, accelerator and precision."""

    shape: ModelShape
    gpu: Gpu
    precision: str


@dataclass(frozen=True, slots=True)
class PriorErrors:
    """Mean relative errors of the prior."""

    steps: float
    ttft: float
    """Of the time to a first token without a queue. It depends more on the stack than on the accelerator."""
    inside: bool
    """Whether the prior's constants were fitted to such engines."""

    def covers(self, error: float, *, ttft: bool) -> bool:
        """Return whether a measured value is within the range that holds 90 % of what is known."""
        size = self.ttft if ttft else self.steps
        return abs(math.log1p(error)) <= Z_90 * DEVIATION * size


PRIOR, FOREIGN = PriorErrors(0.07, 0.17, True), PriorErrors(0.16, 0.28, False)
"""As the points of the fit have it, and as fits without one model have it."""
DENSE = PriorErrors(0.09, 0.28, False)
"""The same for dense models like those of the fit: a fit without one of them errs on its steps as on the others."""
GROUPED = PriorErrors(0.17, 0.52, False)
"""The same for attention data parallelism, which nothing was fitted to: the mean of two models' errors, MiniMax-M2.5 (9
and 31 %) and Qwen3-235B (24 and 74 %). All groups pass one front end and wait for each other's prompts.
"""
LEAST_DENSE = 7_000_000_000


@dataclass(frozen=True, slots=True)
class Score:
    """Relative errors of a config. Negative is predicted too fast."""

    config: Config
    points: int
    tpot: Sequence[float]
    ttft: Sequence[float]
    errors: PriorErrors

    @property
    def in_calibration(self) -> bool:
        """Whether the prior's constants were fitted to such engines."""
        return self.errors.inside

    def as_json(self) -> dict[str, Any]:
        """Return the data of `--json`."""
        return {
            "model": self.config.model,
            "system": self.config.system,
            "precision": self.config.precision,
            "tp": self.config.tensor_parallel,
            "groups": self.config.groups,
            "kv_bytes": self.config.kv_element_bytes,
            "points": self.points,
            "median_tpot_error": _median(self.tpot),
            "median_ttft_error": _median(self.ttft),
            "tpot_bias": statistics.median(self.tpot),
            "ttft_bias": statistics.median(self.ttft),
            "tpot_in_range": _part(self.tpot, self.errors, ttft=False),
            "ttft_in_range": _part(self.ttft, self.errors, ttft=True),
            "in_calibration": self.in_calibration,
        }


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of the prior on a file."""

    configs: Sequence[Score]
    skipped: Sequence[dict[str, Any]]
    """Model, system, precision, points, and why."""

    def as_json(self) -> dict[str, Any]:
        """Return the data of `--json`. PriorErrors are parts of the measured value, and None without any point."""
        return {
            "median_tpot_error": _median([each for score in self.configs for each in score.tpot]),
            "median_ttft_error": _median([each for score in self.configs for each in score.ttft]),
            "p90_tpot_error": _p90([each for score in self.configs for each in score.tpot]),
            "p90_ttft_error": _p90([each for score in self.configs for each in score.ttft]),
            "tpot_in_range": self._covered(ttft=False),
            "ttft_in_range": self._covered(ttft=True),
            "configs": [score.as_json() for score in self.configs],
            "skipped": list(self.skipped),
        }

    def _covered(self, *, ttft: bool) -> float | None:
        pairs = [(each, score.errors) for score in self.configs for each in (score.ttft if ttft else score.tpot)]
        return statistics.fmean(errors.covers(each, ttft=ttft) for each, errors in pairs) if pairs else None


def _part(values: Sequence[float], errors: PriorErrors, *, ttft: bool) -> float:
    return statistics.fmean(errors.covers(each, ttft=ttft) for each in values)


def _p90(errors: Sequence[float]) -> float | None:
    values = sorted(abs(each) for each in errors)
    return values[int(0.9 * (len(values) - 1))] if values else None


def _median(errors: Sequence[float]) -> float | None:
    return statistics.median(abs(each) for each in errors) if errors else None


def read_points(path: Path) -> list[Point]:
    """Read a CSV file with `COLUMNS`. Further columns may tell how the engine was split.

    Raises:
        TraceError: the file cannot be read, lacks a column, or has a wrong value.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, restkey=_MORE)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise TraceError(str(path), 1, missing[0], f"is missing; needed are {', '.join(COLUMNS)}")
            # Spreadsheets end with rows of commas alone.
            points = [_point(path, rows.line_num, row) for row in rows if any(row.values())]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(str(path), 0, "", plain_reason(error)) from error
    if not points:
        raise TraceError(str(path), 0, "", "has no points")
    return points


def _point(path: Path, line: int, row: dict[str, Any]) -> Point:
    if any(row.get(_MORE, ())):
        # Commas within numbers move all that is behind them.
        raise TraceError(str(path), line, "", f"has more values than the header's {len(row) - 1} columns")

    def number(name: str) -> float:
        try:
            value = float(row[name])
        except (TypeError, ValueError):
            value = -1.0
        if not 0 < value < 1e12:
            raise TraceError(str(path), line, name, f"must be a number above 0, got {row[name]!r}")
        return value

    def whole(name: str) -> int:
        value = number(name)
        if value != int(value):
            raise TraceError(str(path), line, name, f"must be a whole number of at least 1, got {row[name]!r}")
        return int(value)

    def seconds(name: str) -> float:
        return math.nan if (row[name] or "").strip().lower() in _NOTHING else number(name) / 1e3

    ranks, groups = whole("tp_size"), 1 if _alone(row, "attention_dp_size") else whole("attention_dp_size")
    cache = (row.get("kv_cache_dtype") or "").strip().lower()
    kv_bytes = 1.0 if cache.startswith("fp8_") else _CACHES.get(cache)
    if kv_bytes is None:
        raise TraceError(str(path), line, "kv_cache_dtype", f"must be auto, bf16 or fp8, got {cache!r}")
    config = Config(row["model_path"], row["system"], row["precision"], ranks, groups, kv_bytes)
    shape, clients = Shape(number("isl"), number("osl")), whole("batch_size")
    # Experts that are split whole over the ranks of one tensor-parallel group take the same time.
    stages = 1 if _alone(row, "pp_size") else whole("pp_size")
    layout = "" if stages == 1 else f"pipeline {stages}"
    ttft_s, tpot_s = seconds("silicon_ttft_ms"), seconds("silicon_tpot_ms")
    if math.isnan(ttft_s) or math.isnan(tpot_s):
        layout = f"no {'silicon_ttft_ms' if math.isnan(ttft_s) else 'silicon_tpot_ms'}"
    version = row.get("backend_version") or ""
    return Point(config, shape, clients, ttft_s, tpot_s, layout, version, cache_told=bool(cache), stages=stages)


def _alone(row: dict[str, str], name: str) -> bool:
    return row.get(name) in (None, "", "0", "0.0", "1", "1.0")


@lru_cache(maxsize=256)
def known(config: Config) -> Known | str:
    """Look a config up. Return a string with the reason if it is unknown."""
    shape, gpu = find_shape(config.model), find_gpu(config.system)
    if shape is None:
        return "unknown model"
    if gpu is None:
        return "unknown system"
    try:
        return Known(shape, gpu, precision_of(config.precision))
    except SettingsError:
        return "unknown precision"


def predict(
    point: Point, found: Known, coefficients: Coefficients | None = None, first: FirstTokens | None = None
) -> Steady | None:
    """Predict a point with the prior; None where the model would not fit."""
    room = room_of(point, found)
    if not room.fits:
        return None
    engine = engine_of(point.config, found, coefficients, first)
    tokens, sequences = found.gpu.step_limits
    return steady(
        engine,
        point.clients,
        point.shape,
        kv_tokens=room.kv_tokens,
        step_tokens=tokens,
        max_sequences=min(sequences, point.batch_limit),
    )


def engine_of(
    config: Config, found: Known, coefficients: Coefficients | None = None, first: FirstTokens | None = None
) -> StepPrior:
    """Return the prior of an engine that was measured."""
    return prior(
        found.shape,
        found.gpu,
        config.tensor_parallel,
        found.precision,
        kv_element_bytes=config.kv_element_bytes,
        coefficients=coefficients,
        groups=config.groups,
        first_tokens=first,
    )


def room_of(point: Point, found: Known) -> Sizing:
    """Return the memory of an engine that was measured."""
    config = point.config
    return size(
        found.shape,
        found.gpu,
        config.tensor_parallel,
        found.precision,
        kv_element_bytes=config.kv_element_bytes,
        length=point.shape.peak_tokens,
        groups=config.groups,
    )


def score(points: Iterable[Point], coefficients: Coefficients | None = None) -> Scores:
    """Score the prior on measured points."""
    groups: dict[Config, list[tuple[float, float]]] = defaultdict(list)
    skipped: Counter[tuple[str, str, str, str]] = Counter()
    bounds: dict[Config, PriorErrors] = {}
    for point in points:
        config = point.config
        found = known(config)
        why = found if isinstance(found, str) else point.layout
        got = None if why or isinstance(found, str) else predict(point, found, coefficients)
        if got is None or isinstance(found, str):
            skipped[(config.model, config.system, config.precision, why or "does not fit as we size it")] += 1
            continue
        groups[config].append((got.itl_s / point.tpot_s - 1, got.ttft_s / point.ttft_s - 1))
        bounds[config] = errors_of(found, config.tensor_parallel, groups=config.groups)
    scores = [
        Score(config, len(errors), [e[0] for e in errors], [e[1] for e in errors], bounds[config])
        for config, errors in sorted(groups.items(), key=lambda item: _order(item[0]))
    ]
    names = ("model", "system", "precision", "why")
    lost = [{**dict(zip(names, key, strict=True)), "points": count} for key, count in sorted(skipped.items())]
    return Scores(scores, lost)


def in_calibration(found: Known, tensor_parallel: int) -> bool:
    """Return whether the prior's coefficients were fitted on this kind of engine."""
    return (found.shape.name, found.precision) in SEEN and found.gpu.in_calibration and tensor_parallel <= 8


def errors_of(found: Known, tensor_parallel: int, *, groups: int = 1, stages: int = 1) -> PriorErrors:
    """Return how far off the prior is for an engine."""
    if groups > 1:
        return GROUPED
    if stages > 1:
        return FOREIGN
    if in_calibration(found, tensor_parallel):
        return PRIOR
    shape = found.shape
    plain = shape.experts is None and shape.latent is None and shape.recurrent is None and not shape.encoder
    usual = (
        shape.kv_heads < shape.heads and shape.parameters >= LEAST_DENSE and found.precision in ("bf16", "fp8", "fp4")
    )
    near = found.gpu.in_calibration and tensor_parallel <= 8
    return DENSE if plain and usual and near else FOREIGN


def _order(config: Config) -> tuple[str, str, str, int, int, float]:
    return (
        config.model, config.system, config.precision, config.groups, config.tensor_parallel, config.kv_element_bytes,
    )  # fmt: skip
