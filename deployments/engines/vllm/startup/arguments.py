"""Translation of pool settings to vLLM's engine arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.settings import PoolSettings, SpeculativeSettings, VllmSettings
from cluster.sources import source_of
from deployments.engines.vllm.compilers.check import BACKENDS
from deployments.engines.vllm.pooling import RUNNERS
from deployments.engines.vllm.startup.extra import with_extra
from deployments.engines.vllm.startup.object_store import load_format

SCHEDULERS = "deployments.engines.vllm.scheduler"
"""Module of our schedulers."""
IN_CORE = "deployments.engines.vllm.in_core.InCoreExecutor"
"""Name by which vLLM loads the executor of a CPU engine with one worker."""
CPU_BLOCK_SIZE = 32
"""Tokens per KV block. vLLM's own default on a CPU is 128, too coarse for prefix hits on short prompts."""
CPU_KV_CACHE_MB = 256
DEMO_KV_CACHE_MB = 64
"""The same for the demo model, where it is room for 20,000 tokens."""
KEPT_ADAPTERS = 4
"""Adapters in memory for each one that a step may use."""
CPU_MAX_BATCHED_TOKENS = 2048
"""Smallest token budget on a CPU."""


def engine_arguments(
    pool: PoolSettings,
    model: Path | str,
    *,
    on_cpu: bool,
    context_tokens: int | None = None,
    generates: bool = True,
    can_sleep: bool = False,
) -> dict[str, Any]:
    """Build the keyword arguments of `AsyncEngineArgs`.

    Args:
        pool: the settings.
        model: a folder, a hub id or the URL of an object store.
        on_cpu: whether vLLM's platform is the CPU.
        context_tokens: the model's own context length, for the CPU's token budget where settings give none.
        generates: whether the model generates text.
        can_sleep: whether vLLM's platform has a sleep mode.
    """
    own = pool.vllm
    arguments: dict[str, Any] = {
        "model": str(model),
        "runner": RUNNERS[pool.task],
        "tensor_parallel_size": pool.tensor_parallel_size,
        "pipeline_parallel_size": pool.pipeline_parallel_size,
        "distributed_executor_backend": _executor(pool, on_cpu),
        "dtype": own.dtype,
        "quantization": own.quantization,
        "kv_cache_dtype": own.kv_cache_dtype,
        "max_model_len": own.max_model_len,
        "max_num_seqs": own.max_num_seqs,
        "max_num_batched_tokens": own.max_num_batched_tokens,
        # A model that only encodes can't, and vLLM knows which these are.
        "enable_prefix_caching": own.enable_prefix_caching if generates else own.enable_prefix_caching and None,
        "trust_remote_code": own.trust_remote_code,
        "load_format": load_format(pool),
        "enforce_eager": enforces_eager(pool, on_cpu=on_cpu),
        # Sampling defaults come from requests alone. Those in the model's folder are ignored.
        "generation_config": "auto",
        "disable_log_stats": True,
        "structured_outputs_config": {
            "backend": BACKENDS[own.structured_output.compiler],
            "disable_any_whitespace": not own.structured_output.any_whitespace,
        },
    }
    arguments |= revision_arguments(pool) | _cache(pool, on_cpu)
    if on_cpu:
        arguments |= _cpu_scheduling(own, context_tokens)
    if own.reasoning_parser is not None:
        # Constraints then begin after the reasoning.
        arguments["structured_outputs_config"]["reasoning_parser"] = own.reasoning_parser
    if own.speculative:
        arguments["speculative_config"] = _speculative(own.speculative)
    if can_sleep and pool.autoscale.standby:
        arguments["enable_sleep_mode"] = True
    if slots := own.adapter_slots:
        arguments |= {
            "enable_lora": True,
            "max_loras": slots,
            "max_cpu_loras": own.max_cpu_loras or KEPT_ADAPTERS * slots,
            "max_lora_rank": own.max_lora_rank,
        }
    return with_extra(arguments, own.extra)


def revision_arguments(pool: PoolSettings) -> dict[str, str]:
    """Return the arguments that pin a hub's repository. Its own code is of the same revision by itself, and code of
    another repository, which a model may name, has no such revision: `code_revision` would ask for it there.
    """
    revision = source_of(pool.model, pool.revision).revision
    return dict.fromkeys(("revision", "tokenizer_revision"), revision) if revision else {}


def works_in_core(pool: PoolSettings, *, on_cpu: bool) -> bool:
    """Return whether the engine's worker runs in the engine core's own process."""
    return on_cpu and pool.ranks == 1


def core_modules(pool: PoolSettings) -> tuple[str, ...]:
    """Return the modules that an engine core on a CPU needs whatever the model."""
    executor = (
        "vllm.v1.worker.cpu_worker" if works_in_core(pool, on_cpu=True) else "vllm.v1.executor.multiproc_executor"
    )
    return (executor, "vllm.v1.engine.core", SCHEDULERS)


def enforces_eager(pool: PoolSettings, *, on_cpu: bool) -> bool:
    """Return whether the model runs without compilation, as it does on a CPU by default."""
    return on_cpu if pool.vllm.enforce_eager is None else pool.vllm.enforce_eager


def core_binding(cpu_cores: Sequence[int] | None, ranks: int, of_process: Sequence[int]) -> str:
    """Return VLLM_CPU_OMP_THREADS_BIND: the cores of each rank, ranks separated by bars.

    vLLM's own "auto" needs a NUMA node per rank and gives several replicas of a machine the same cores. Here ranks
    share the cores evenly, and wrap around when there are fewer cores than ranks.

    Args:
        cpu_cores: cores that belong to this engine; None or empty takes those of the process.
        ranks: tensor parallel size.
        of_process: cores that the process may use, at least one. One of them is left for the scheduler if possible,
            because ranks spin while they wait for each other.
    """
    cores = list(cpu_cores or (of_process[:-1] if len(of_process) > ranks else of_process))
    share = max(1, len(cores) // ranks)
    groups = [[cores[(rank * share + i) % len(cores)] for i in range(share)] for rank in range(ranks)]
    return "|".join(",".join(str(core) for core in group) for group in groups)


def _executor(pool: PoolSettings, on_cpu: bool) -> str:
    # By default vLLM takes Ray inside a placement group. Its CPU platform cannot use Ray; between machines only Ray
    # works.
    if pool.pipeline_parallel_size > 1:
        return "ray"
    return IN_CORE if works_in_core(pool, on_cpu=on_cpu) else "mp"


def _cache(pool: PoolSettings, on_cpu: bool) -> dict[str, Any]:
    own = pool.vllm
    cache: dict[str, Any] = {}
    if not on_cpu:
        cache["gpu_memory_utilization"] = own.gpu_memory_utilization
    kv_cache_mb = own.kv_cache_memory_mb or (_cpu_kv_cache_mb(pool) if on_cpu else None)
    if kv_cache_mb is not None:
        cache["kv_cache_memory_bytes"] = kv_cache_mb << 20
    block_size = own.block_size or (CPU_BLOCK_SIZE if on_cpu else None)
    if block_size is not None:
        cache["block_size"] = block_size
    return cache


def _cpu_kv_cache_mb(pool: PoolSettings) -> int:
    return DEMO_KV_CACHE_MB if pool.model == "demo" else CPU_KV_CACHE_MB


def _cpu_scheduling(own: VllmSettings, context_tokens: int | None) -> dict[str, Any]:
    """Never split a prefill: on a CPU, vLLM crashes on a seeded request whose prefill the token budget splits."""
    if own.allow_split_prefill_on_cpu:
        return {"async_scheduling": False}
    context = own.max_model_len or context_tokens or 0
    return {
        "async_scheduling": False,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(own.max_num_batched_tokens or CPU_MAX_BATCHED_TOKENS, context, own.max_num_seqs),
    }


def _speculative(own: SpeculativeSettings) -> dict[str, Any]:
    config: dict[str, Any] = {"method": own.method, "num_speculative_tokens": own.num_speculative_tokens}
    if own.method == "ngram":
        config |= {"prompt_lookup_min": own.prompt_lookup_min, "prompt_lookup_max": own.prompt_lookup_max}
    else:
        config["model"] = own.model
        if own.model:
            draft = source_of(own.model)
            config["model"] = draft.engine_name
            if draft.revision:
                config["revision"] = draft.revision
    return config
