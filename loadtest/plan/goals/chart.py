"""A planned pool as values of the chart: all that a release needs beside its secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadtest.plan.engine.gpus import AMD, GPUS

CPUS, MEMORY_GIB, SHARED_GIB = 4, 64, 8
"""CPU cores, memory and of that shared memory that a pod asks for per accelerator. The chart has no default for them;
servers differ.
"""
GUESS = f"{CPUS} CPU cores and {MEMORY_GIB} GiB of memory per GPU are a guess, no part of the plan"
DEFAULT_POOL = "demo"
"""The pool that the chart's own values have."""
_CUDA, _ROCM = "ghcr.io/penstock/penstock-replica-cuda", "penstock-replica-rocm"


def values_of(name: str, pool: Mapping[str, Any], gpu: str) -> dict[str, Any]:
    """Return values of the chart with this one pool on accelerators of a kind."""
    gpus, stages = int(pool["tensor_parallel_size"]), int(pool["pipeline_parallel_size"])
    scaled = pool.get("autoscale", {})
    resources = {
        "requests": {"cpu": str(CPUS * gpus), "memory": f"{MEMORY_GIB * gpus}Gi"},
        "limits": {"cpu": str(2 * CPUS * gpus), "memory": f"{MEMORY_GIB * gpus}Gi"},
    }
    workers: dict[str, Any] = {
        # Pods that always stay would keep the accelerators that the autoscaler gives back.
        "min": int(scaled.get("min_replicas", pool["replicas"])) * stages,
        "max": int(scaled.get("max_replicas", pool["replicas"])) * stages,
        "resources": resources,
    }
    if gpus > 1:
        workers["sharedMemory"] = f"{SHARED_GIB * gpus}Gi"
    if _is_amd(gpu):
        workers["accelerator"] = "amd.com/gpu"
    values: dict[str, Any] = {"images": {"replica": {"repository": _ROCM if _is_amd(gpu) else _CUDA}}}
    # null takes the chart's own pool away, which would be a second model on CPUs.
    values["pools"] = {} if name == DEFAULT_POOL else {DEFAULT_POOL: None}
    values["pools"][name] = {"settings": dict(pool), "device": "gpu", "workers": workers}
    if scaled:
        values["autoscaler"] = {"enabled": True}
    if _is_downloaded(str(pool["model"])):
        values["networkPolicy"] = {"modelSources": [{"ipBlock": {"cidr": each}} for each in ("0.0.0.0/0", "::/0")]}
    return values


def yaml_of(name: str, pool: Mapping[str, Any], gpu: str) -> str:
    """Return the values as YAML, with comments on what is no part of the plan."""
    remarks = {
        (): (
            "Values of Penstock's chart: `helm install penstock k8s/chart -n penstock --create-namespace "
            "--set secrets.generate=true -f values.yaml`."
        ),
        ("images",): _image_remark(gpu),
        ("pools", DEFAULT_POOL): "Takes the chart's own pool away.",
        ("pools", name, "workers"): f"Nodes with {gpu} are for you to choose: nodeSelector.",
        ("pools", name, "workers", "resources"): f"{GUESS}: fit them to your servers.",
        ("autoscaler",): "It moves the replicas of the pool.",
        ("networkPolicy", "modelSources"): (
            "Lets workers download the model from anywhere. A proxy's address, or weights on a volume, is narrower."
        ),
    }
    if not _is_downloaded(str(pool["model"])):
        remarks["pools", name, "settings"] = "The pods must have this folder, such as by ray.modelCache.existingClaim."
    return "\n".join(_lines(values_of(name, pool, gpu), remarks)) + "\n"


def _is_amd(gpu: str) -> bool:
    return gpu in GPUS and GPUS[gpu].capability == AMD


def _is_downloaded(model: str) -> bool:
    """Return whether a model is a hub id. A folder of this machine or of the pods is none, and demo is in the image."""
    path = Path(model).expanduser()
    return model != DEFAULT_POOL and not (path.is_absolute() or model.startswith(".") or path.exists())


def _image_remark(gpu: str) -> str:
    if _is_amd(gpu):
        return "Nobody publishes this image. k8s/images/replica-rocm.Dockerfile is a recipe; name yours."
    return "The chart's default image is for CPUs."


def _lines(
    value: Mapping[str, Any], remarks: Mapping[tuple[str, ...], str], path: tuple[str, ...] = ()
) -> Iterator[str]:
    indent = "  " * len(path)
    if not path and path in remarks:
        yield f"# {remarks[path]}"
    for key, each in value.items():
        here = (*path, key)
        if here in remarks:
            yield f"{indent}# {remarks[here]}"
        if isinstance(each, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(each, remarks, here)
        else:
            # JSON is YAML.
            yield f"{indent}{key}: {json.dumps(each, ensure_ascii=False)}"
