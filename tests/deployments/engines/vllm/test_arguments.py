from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cluster.settings import PoolSettings, SpeculativeSettings, VllmSettings
from deployments.engines.vllm.startup.arguments import core_binding, engine_arguments


def arguments(on_cpu: bool, **vllm: Any) -> dict[str, Any]:
    return engine_arguments(PoolSettings(vllm=VllmSettings(**vllm)), "model", on_cpu=on_cpu, context_tokens=4096)


def test_cpu_engine_never_splits_a_prefill() -> None:
    found = arguments(True)
    assert found["enable_chunked_prefill"] is False
    assert found["max_num_batched_tokens"] >= 4096
    assert found["async_scheduling"] is False


def test_cpu_token_budget_follows_a_shorter_context() -> None:
    assert arguments(True, max_model_len=512)["max_num_batched_tokens"] == 2048
    assert arguments(True, max_model_len=512, max_num_batched_tokens=64)["max_num_batched_tokens"] == 512


def test_guard_can_be_switched_off() -> None:
    found = arguments(True, allow_split_prefill_on_cpu=True, max_num_batched_tokens=64)
    assert "enable_chunked_prefill" not in found
    assert found["max_num_batched_tokens"] == 64


def test_cpu_takes_little_memory_and_starts_fast() -> None:
    found = arguments(True)
    assert (found["kv_cache_memory_bytes"], found["block_size"], found["enforce_eager"]) == (64 << 20, 32, True)
    assert arguments(True, kv_cache_memory_mb=8)["kv_cache_memory_bytes"] == 8 << 20
    other = engine_arguments(PoolSettings(model="/models/other"), "/models/other", on_cpu=True)
    assert other["kv_cache_memory_bytes"] == 256 << 20


def test_gpu_keeps_vllm_defaults() -> None:
    found = arguments(False)
    for name in ("kv_cache_memory_bytes", "block_size", "enable_chunked_prefill", "async_scheduling"):
        assert name not in found
    assert found["enforce_eager"] is False
    assert found["gpu_memory_utilization"] == 0.9


@pytest.mark.parametrize(
    ("on_cpu", "sizes", "executor"),
    [
        pytest.param(True, (1, 1), "deployments.engines.vllm.in_core.InCoreExecutor", id="cpu"),
        pytest.param(True, (2, 1), "mp", id="ranks on a cpu"),
        pytest.param(False, (1, 1), "mp", id="gpu"),
        pytest.param(False, (1, 2), "ray", id="machines"),
    ],
)
def test_only_the_single_worker_of_a_cpu_runs_in_the_engine_core(
    on_cpu: bool, sizes: tuple[int, int], executor: str
) -> None:
    pool = PoolSettings(tensor_parallel_size=sizes[0], pipeline_parallel_size=sizes[1])
    assert executor == engine_arguments(pool, "model", on_cpu=on_cpu)["distributed_executor_backend"]


def test_ngram_speculation_passes_through() -> None:
    found = arguments(False, speculative=SpeculativeSettings(num_speculative_tokens=5, prompt_lookup_max=7))
    assert found["speculative_config"] == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 7,
    }


def test_draft_model_and_adapters_pass_through() -> None:
    draft = SpeculativeSettings(method="draft_model", model="small")
    found = arguments(False, speculative=draft, lora_modules={"a": "/a", "b": "/b"}, max_lora_rank=8)
    assert found["speculative_config"]["model"] == "small"
    assert (found["enable_lora"], found["max_loras"], found["max_lora_rank"]) == (True, 2, 8)
    assert arguments(True, lora_modules={"a": "/a", "b": "/b"})["max_loras"] == 2


def test_adapters_may_come_later() -> None:
    assert "enable_lora" not in arguments(False)
    found = arguments(False, max_loras=3)
    assert (found["enable_lora"], found["max_loras"], found["max_cpu_loras"]) == (True, 3, 12)
    assert arguments(False, max_loras=3, max_cpu_loras=5)["max_cpu_loras"] == 5


def test_slots_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValidationError, match="max_cpu_loras must be at least max_loras = 4, got 3"):
        VllmSettings(max_loras=4, max_cpu_loras=3)
    with pytest.raises(ValidationError, match="max_loras must be at least 1 with 1 lora_modules, got 0"):
        VllmSettings(max_loras=0, lora_modules={"a": "/a"})


def test_quantization_and_precision_pass_through() -> None:
    found = arguments(False, quantization="fp8", kv_cache_dtype="fp8", dtype="float16", enable_prefix_caching=False)
    assert (found["quantization"], found["kv_cache_dtype"], found["dtype"]) == ("fp8", "fp8", "float16")
    assert found["enable_prefix_caching"] is False


@pytest.mark.parametrize(
    ("cores", "ranks", "of_process", "binding"),
    [
        ([0, 1], 2, [0, 1], "0|1"),
        ([3], 2, [0, 1, 2, 3], "3|3"),
        ([4, 5, 6, 7], 2, [], "4,5|6,7"),
        ([4, 5, 6], 2, [], "4|5"),
        ([1], 1, [0, 1], "1"),
        (None, 1, [0, 1, 2, 3], "0,1,2"),
        (None, 2, [0, 1], "0|1"),
        (None, 1, [5], "5"),
    ],
)
def test_ranks_share_the_cores(cores: list[int] | None, ranks: int, of_process: list[int], binding: str) -> None:
    assert core_binding(cores, ranks, of_process) == binding


def test_ranks_on_one_machine_are_processes_and_on_several_ray_actors() -> None:
    found = engine_arguments(PoolSettings(tensor_parallel_size=8, pipeline_parallel_size=2), "model", on_cpu=False)
    assert (8, 2, "ray") == tuple(
        found[name] for name in ("tensor_parallel_size", "pipeline_parallel_size", "distributed_executor_backend")
    )
    assert "mp" == arguments(False)["distributed_executor_backend"]


@pytest.mark.parametrize(("can_sleep", "standby", "expected"), [(True, 1, True), (True, 0, None), (False, 1, None)])
def test_vllm_can_sleep_where_replicas_stand_by_and_its_platform_can(
    can_sleep: bool, standby: int, expected: bool | None
) -> None:
    pool = PoolSettings.model_validate({"autoscale": {"standby": standby}})
    found = engine_arguments(pool, "model", on_cpu=False, can_sleep=can_sleep)
    assert found.get("enable_sleep_mode") is expected
