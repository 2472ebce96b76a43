"""A plan as settings: a pool for `penstock apply`, and values for the chart."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from cluster.errors import SettingsError
from cluster.settings.load import describe_errors
from cluster.settings.pools import PoolSettings, TaskKind
from loadtest.plan.engine.architectures import is_short, load_shape
from loadtest.plan.engine.gpus import GPUS
from loadtest.plan.engine.precision import is_made
from loadtest.plan.goals.chart import DEFAULT_POOL, yaml_of
from loadtest.plan.option import Promise
from loadtest.plan.search import Candidate

POOL_FILE, VALUES_FILE = "pool.toml", "values.yaml"
ROOM, MOST = 2, 1024
"""Bound of the autoscaler, as a multiple of the planned replicas, and the largest that settings take."""


def check_name(model: str) -> None:
    """Refuse names of models that only the planner knows, and files of which an engine needs the folder.

    Raises:
        SettingsError: it is such a name.
    """
    path = Path(model).expanduser()
    if path.is_file():
        raise SettingsError(f"apply: {model!r} is a file; give the folder that the engine shall load as model")
    if model != DEFAULT_POOL and not path.exists() and is_short(model):
        raise SettingsError(
            f"apply: {model!r} is a short name; give the hub id or folder that the engine shall load as model"
        )


def pool_of(
    candidate: Candidate,
    promise: Promise,
    model: str,
    cold_start_s: float | None = None,
    *,
    vectors: bool = False,
    longest: int = 0,
) -> dict[str, Any]:
    """Return the settings of a pool that runs a candidate.

    Args:
        candidate: of the plan.
        promise: the SLO.
        model: a folder, a hub id or demo, as the engine loads it.
        cold_start_s: of a replica, where the number of replicas shall follow the load; None keeps it fixed.
        vectors: whether the pool embeds texts.
        longest: prompt and output tokens of the longest request.

    Raises:
        SettingsError: a pool cannot be so, or the engine could not load the model by this name.
    """
    engine, operation = candidate.engine, candidate.operation
    check_name(model)
    if engine.layout.data > 1:
        raise SettingsError("apply: pools have no setting for attention data parallelism; plan with tp or pp")
    vllm: dict[str, Any] = {
        "max_num_seqs": operation.batch,
        "max_num_batched_tokens": max(32, operation.step_tokens, operation.batch),
        **_quantization(engine.precision, model),
    }
    if (context := engine.context_for(longest)) is not None:
        vllm["max_model_len"] = context
    if engine.kv_element_bytes < 2:
        vllm["kv_cache_dtype"] = "fp8"
    if engine.gpu in GPUS and not GPUS[engine.gpu].has_bf16:
        vllm["dtype"] = "float16"
    slo = {"ttft_p99_s": promise.ttft_p99_s}
    if math.isfinite(promise.policy_itl_s):
        slo["itl_p95_s"] = promise.policy_itl_s
    pool: dict[str, Any] = {
        "model": model,
        "engine": "vllm",
        "replicas": candidate.replicas,
        "tensor_parallel_size": engine.tensor_parallel,
        "pipeline_parallel_size": engine.layout.pipeline,
        "vllm": vllm,
        "slo": {"interactive": slo, "standard": slo, "attainment": promise.attainment},
    }
    if vectors and not load_shape(model).encoder:
        # An engine would generate. What a model does that only reads, embed or classify, its files say.
        pool["task"] = TaskKind.EMBED.value
    if engine.price:
        pool["price_per_gpu_hour"] = engine.price
    if cold_start_s is not None:
        bounds = {"min_replicas": 1, "max_replicas": max(candidate.replicas, min(ROOM * candidate.replicas, MOST))}
        pool["autoscale"] = {"mode": "active", **bounds, "cold_start_s": max(1.0, cold_start_s)}
    try:
        PoolSettings.model_validate(pool)
    except ValidationError as error:
        raise SettingsError(f"apply: no pool can be so: {describe_errors(error)}") from error
    return pool


def _quantization(precision: str, model: str) -> dict[str, Any]:
    """Return the setting that makes an engine take weights in a precision.

    Raises:
        SettingsError: the engine cannot make it from the published weights.
    """
    native = load_shape(model).native
    if precision == native or {precision, native} == {"fp4", "mxfp4"}:
        return {}
    if is_made(native, precision):
        return {"quantization": "fp8"}
    raise SettingsError(
        f"apply: {model} is published in {native}, and no engine makes {precision} of it at its start; "
        f"give a model that is published in {precision}"
    )


def write(folder: Path, model: str, pool: Mapping[str, Any], gpu: str) -> list[Path]:
    """Write both files. Return them.

    Raises:
        SettingsError: the folder cannot be written.
    """
    name = re.sub(r"[^a-z0-9]+", "-", model.rstrip("/").rsplit("/", 1)[-1].lower()).strip("-") or "model"
    files = [folder / POOL_FILE, folder / VALUES_FILE]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files[0].write_text(tomli_w.dumps({"pools": {name: dict(pool)}}), encoding="utf-8")
        files[1].write_text(yaml_of(name, pool, gpu), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"apply: {folder} cannot be written: {error.strerror or error}") from error
    return files
