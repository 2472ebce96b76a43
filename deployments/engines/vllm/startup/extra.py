"""Engine arguments of vLLM that have no setting of their own."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from cluster.errors import EngineStartError

SETTINGS = {
    "block_size": "vllm.block_size",
    "dtype": "vllm.dtype",
    "enable_lora": "vllm.max_loras",
    "enable_prefix_caching": "vllm.enable_prefix_caching",
    "enforce_eager": "vllm.enforce_eager",
    "gpu_memory_utilization": "vllm.gpu_memory_utilization",
    "kv_cache_dtype": "vllm.kv_cache_dtype",
    "kv_cache_memory_bytes": "vllm.kv_cache_memory_mb",
    "load_format": "vllm.load_format",
    "lora_modules": "vllm.lora_modules",
    "max_cpu_loras": "vllm.max_cpu_loras",
    "max_lora_rank": "vllm.max_lora_rank",
    "max_loras": "vllm.max_loras",
    "max_model_len": "vllm.max_model_len",
    "max_num_batched_tokens": "vllm.max_num_batched_tokens",
    "max_num_seqs": "vllm.max_num_seqs",
    "model": "model",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "quantization": "vllm.quantization",
    "reasoning_parser": "vllm.reasoning_parser",
    "revision": "revision",
    "runner": "task",
    "speculative_config": "vllm.speculative",
    "tensor_parallel_size": "tensor_parallel_size",
    "trust_remote_code": "vllm.trust_remote_code",
}
"""Setting of a pool for each argument that has one."""
_TOKENIZER = "routers tokenize with the files in the model's folder, so the engine must use them too"
_REPLICAS = "each replica is one engine; set replicas for more"
_OWN = "Penstock has its own, for live batch limits and resumed requests"
REFUSED = {
    "data_parallel_size": _REPLICAS,
    "data_parallel_size_local": _REPLICAS,
    "disable_log_stats": "batch limits are decided by the engine's statistics",
    "distributed_executor_backend": "the replica and its engine share a machine, or Ray places both",
    "generation_config": "sampling defaults come from requests alone",
    "logits_processors": _OWN,
    "override_generation_config": "sampling defaults come from requests alone",
    "scheduler_cls": _OWN,
    "skip_tokenizer_init": "output is text",
    "tokenizer": _TOKENIZER,
    "tokenizer_mode": _TOKENIZER,
    "tokenizer_revision": _TOKENIZER,
}
"""Arguments that would break a replica, with the reason."""
_STRUCTURED = {
    "backend": "structured_output.compiler",
    "disable_any_whitespace": "structured_output.any_whitespace",
}


def with_extra(arguments: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine arguments with the extra ones.

    Raises:
        EngineStartError: names each extra argument that has a setting of its own, would break a replica, or is set by
            Penstock itself on this hardware.
    """
    problems = [problem for name in extra if (problem := _problem(name, arguments)) is not None]
    # A part of this argument is ours, and the rest belongs to whoever runs the engine.
    structured = extra.get("structured_outputs_config", {})
    if not isinstance(structured, Mapping):
        problems.append(f"vllm.extra.structured_outputs_config: must be a table, got {structured!r:.40}")
        structured = {}
    problems += [
        f"vllm.extra.structured_outputs_config.{name}: set vllm.{setting} instead"
        for name, setting in _STRUCTURED.items()
        if name in structured
    ]
    if problems:
        raise EngineStartError("; ".join(problems), final=True)
    merged = {**arguments, **extra}
    if structured:
        merged["structured_outputs_config"] = {**arguments["structured_outputs_config"], **structured}
    return merged


def check_names(extra: Mapping[str, Any], known: type) -> None:
    """Check that vLLM has every extra argument.

    Args:
        extra: arguments by name.
        known: vLLM's class of engine arguments, a dataclass.

    Raises:
        EngineStartError: names those that it does not have, and a similar one.
    """
    names = [field.name for field in fields(known)]
    problems = []
    for name in extra:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            problems.append(f"vllm.extra.{name}: this vLLM has no such argument" + f"; is it {near[0]}?" * bool(near))
    if problems:
        raise EngineStartError("; ".join(problems), final=True)


def extra_id(extra: Mapping[str, Any]) -> str:
    """Return a short name for extra arguments, the same for the same ones; empty where there are none."""
    if not extra:
        return ""
    text = json.dumps(extra, sort_keys=True, default=str)
    return f"x{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _problem(name: str, arguments: Mapping[str, Any]) -> str | None:
    if (setting := SETTINGS.get(name)) is not None:
        return f"vllm.extra.{name}: set {setting} instead"
    if (reason := REFUSED.get(name)) is not None:
        return f"vllm.extra.{name}: can't be set: {reason}"
    if name in arguments and name != "structured_outputs_config":
        return f"vllm.extra.{name}: can't be set on this hardware: Penstock sets it to {arguments[name]!r}"
    return None
