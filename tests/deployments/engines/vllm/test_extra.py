"""Engine arguments that have no setting of their own reach vLLM, or are refused with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from cluster.errors import EngineStartError
from cluster.settings import PoolSettings, StructuredOutputSettings, VllmSettings
from deployments.engines.vllm.startup.arguments import engine_arguments
from deployments.engines.vllm.startup.extra import check_names, extra_id


@dataclass
class Known:
    """Stands for vLLM's class of arguments."""

    hf_overrides: Any = None
    kv_transfer_config: Any = None


def arguments(*, on_cpu: bool = False, **vllm: Any) -> dict[str, Any]:
    return engine_arguments(PoolSettings(vllm=VllmSettings(**vllm)), "m", on_cpu=on_cpu)


def test_an_argument_without_a_setting_is_passed_on_as_it_is() -> None:
    extra = {"hf_overrides": {"rope_theta": 1e6}, "enable_sleep_mode": False, "limit_mm_per_prompt": {"image": 0}}
    found = arguments(extra=extra)
    assert {name: found[name] for name in extra} == extra


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("max_model_len", "set vllm.max_model_len instead"),
        ("speculative_config", "set vllm.speculative instead"),
        ("model", "set model instead"),
        ("tokenizer", "routers tokenize with the files in the model's folder"),
        ("scheduler_cls", "Penstock has its own"),
        ("data_parallel_size", "set replicas for more"),
        ("runner", "set task instead"),
        ("revision", "set revision instead"),
    ],
)
def test_an_argument_with_a_setting_or_that_would_break_a_replica_is_refused(name: str, words: str) -> None:
    with pytest.raises(EngineStartError, match=f"^vllm.extra.{name}: .*{words}"):
        arguments(extra={name: 1})


def test_all_wrong_arguments_are_named_at_once() -> None:
    with pytest.raises(EngineStartError, match=r"vllm.extra.dtype: .*; vllm.extra.runner: "):
        arguments(extra={"dtype": "half", "runner": "pooling"})


def test_what_the_hardware_demands_can_not_be_set() -> None:
    extra = {"enable_chunked_prefill": True}
    assert arguments(extra=extra)["enable_chunked_prefill"]
    with pytest.raises(EngineStartError, match="enable_chunked_prefill: can't be set on this hardware"):
        arguments(on_cpu=True, extra=extra)


def test_the_compiler_is_a_setting_and_the_rest_of_its_argument_is_free() -> None:
    found = arguments(extra={"structured_outputs_config": {"reasoning_parser": "qwen3"}})
    assert found["structured_outputs_config"] == {
        "backend": "guidance", "disable_any_whitespace": True, "reasoning_parser": "qwen3",
    }  # fmt: skip
    other = StructuredOutputSettings(compiler="xgrammar", any_whitespace=True)
    assert arguments(structured_output=other)["structured_outputs_config"] == {
        "backend": "xgrammar", "disable_any_whitespace": False,
    }  # fmt: skip
    with pytest.raises(EngineStartError, match=r"set vllm.structured_output.compiler instead"):
        arguments(extra={"structured_outputs_config": {"backend": "auto"}})


def test_a_name_that_vllm_does_not_have_is_refused_with_a_similar_one() -> None:
    check_names({"hf_overrides": {}}, Known)
    with pytest.raises(EngineStartError, match=r"vllm.extra.hf_override: .*; is it hf_overrides\?$"):
        check_names({"hf_override": {}}, Known)


def test_the_same_extra_arguments_have_the_same_name() -> None:
    assert extra_id({}) == ""
    assert extra_id({"a": 1, "b": {"c": 2}}) == extra_id({"b": {"c": 2}, "a": 1})
    assert extra_id({"a": 1}) != extra_id({"a": 2})
