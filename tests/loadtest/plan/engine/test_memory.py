"""Sizes that are known from model cards, data sheets and a real engine's log."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from cluster.errors import SettingsError
from deployments.demo_model import MODEL_DIR
from loadtest.plan.engine.architectures import KNOWN, find_shape, load_shape
from loadtest.plan.engine.gpus import find_gpu, load_gpu
from loadtest.plan.engine.memory import Sizing, size
from loadtest.plan.engine.precision import weights_of
from loadtest.plan.engine.shapes import ModelShape, read_config, shape_of


def shape(name: str) -> ModelShape:
    found = find_shape(name)
    assert found is not None
    return found


def sized(model: str, gpu: str, ranks: int, precision: str) -> Sizing:
    return size(shape(model), load_gpu(gpu), ranks, precision)


@pytest.mark.parametrize(
    ("model", "precision", "gigabytes"),
    [
        ("llama-3.1-8b", "bf16", 16.06),
        ("llama-3.1-70b", "bf16", 141.1),
        ("llama-3.1-70b", "fp8", 70.6),
        ("llama-2-70b", "bf16", 138.0),
        ("llama-3.1-405b", "bf16", 811.7),
        ("llama-3.1-405b", "fp8", 405.9),
        ("qwen3-32b", "bf16", 65.5),
        ("mixtral-8x7b", "bf16", 93.4),
        ("deepseek-v3", "fp8", 671.0),
        ("gpt-oss-120b", "mxfp4", 65.2),
    ],
)
def test_weights_are_as_large_as_published(model: str, precision: str, gigabytes: float) -> None:
    assert gigabytes == pytest.approx(weights_of(shape(model), precision).total_bytes / 1e9, rel=0.002)


@pytest.mark.parametrize(
    ("model", "precision", "gigabytes"),
    [
        ("llama-3.1-8b", "fp8", 9.08),
        ("llama-3.1-8b", "int4", 5.73),
        ("llama-3.1-70b", "fp8", 72.6),
        ("llama-3.1-70b", "int4", 39.8),
        ("qwen2.5-7b", "int4", 5.57),
        ("gemma-2-9b", "fp8", 10.1),
    ],
)
def test_a_quantised_model_takes_the_memory_of_its_files(model: str, precision: str, gigabytes: float) -> None:
    """Embedding and output layer stay in 16 bits: a third of Llama-3.1-8B in 4 bits."""
    room = size(shape(model), load_gpu("h200"), 1, precision)
    assert gigabytes <= room.weights / 1e9 <= 1.07 * gigabytes


def test_four_bit_weights_carry_their_scales() -> None:
    assert 38 <= weights_of(shape("llama-3.1-70b"), "int4").total_bytes / 1e9 <= 40


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [
        ("llama-3-8b", 131_072),
        ("llama-2-70b", 327_680),
        ("llama-3.1-70b", 327_680),
        ("llama-3.1-405b", 516_096),
        ("llama-2-7b", 524_288),
        ("qwen3-32b", 262_144),
        ("mixtral-8x7b", 131_072),
        ("qwen2.5-7b", 57_344),
        ("gpt-oss-120b", 73_728),
        ("deepseek-v3", 70_272),
    ],
)
def test_kv_bytes_per_token(model: str, bytes_per_token: int) -> None:
    assert bytes_per_token == shape(model).kv_bytes()


def test_kv_heads_are_split_as_far_as_they_go_and_then_copied() -> None:
    model = shape("llama-3.1-70b")
    per_rank = [model.kv_bytes_per_rank(ranks) for ranks in (1, 2, 8, 16)]
    assert [327_680, 163_840, 40_960, 40_960] == per_rank


def test_latent_vectors_are_on_every_rank() -> None:
    assert 70_272 == shape("deepseek-v3").kv_bytes_per_rank(8)


def test_an_rtx_4090_has_the_kv_cache_that_vllm_reported_and_never_more() -> None:
    assert 0.9 * 41_408 <= sized("llama-3.1-8b", "rtx4090", 1, "bf16").kv_tokens <= 41_408


def test_70b_in_bf16_on_two_h100_loads_and_is_starved() -> None:
    room = sized("llama-3.1-70b", "h100", 2, "bf16")
    assert room.fits
    assert room.starved
    assert 9e9 <= 2 * room.kv <= 10e9
    assert 30_000 == pytest.approx(room.kv_tokens, rel=0.1)


@pytest.mark.parametrize(
    ("model", "gpu", "ranks", "precision"),
    [
        ("llama-3.1-70b", "h200", 2, "bf16"),
        ("llama-3.1-70b", "h100", 4, "bf16"),
        ("llama-3.1-70b", "h200", 1, "fp8"),
        ("llama-3.1-70b", "h100", 2, "fp8"),
        ("llama-3.1-405b", "h100", 8, "fp8"),
    ],
)
def test_what_fits_well(model: str, gpu: str, ranks: int, precision: str) -> None:
    room = sized(model, gpu, ranks, precision)
    assert room.fits
    assert not room.starved


def test_405b_in_bf16_does_not_fit_eight_h100_and_says_by_how_much() -> None:
    room = sized("llama-3.1-405b", "h100", 8, "bf16")
    assert not room.fits
    assert 26.1e9 == pytest.approx(room.short_by, rel=0.01)


def test_overhead_grows_with_the_step() -> None:
    small, large = (
        size(shape("llama-3.1-70b"), load_gpu("h100"), 4, "fp8", step_tokens=tokens) for tokens in (2048, 16384)
    )
    assert 1.5e9 <= small.overhead < large.overhead


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "llama-3.3-70b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b"),
        ("nvidia/Kimi-K2-Thinking-NVFP4", "kimi-k2-thinking"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
    ],
)
def test_hub_ids_are_recognised(name: str, known: str) -> None:
    assert known == shape(name).name


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("Qwen/Qwen3-4B", 40_960),
        ("Qwen/Qwen3-4B-Instruct-2507", 262_144),
        ("Qwen/Qwen3-4B-Thinking-2507-FP8", 262_144),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", 262_144),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 262_144),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", 262_144),
        ("Qwen/Qwen3-Embedding-0.6B", 32_768),
        ("Qwen/Qwen2.5-32B-Instruct", 32_768),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", 131_072),
        ("moonshotai/Kimi-K2-Instruct", 131_072),
        ("moonshotai/Kimi-K2-Instruct-0905", 262_144),
        ("BAAI/bge-m3", 8194),
        ("intfloat/multilingual-e5-large", 514),
    ],
)
def test_a_model_has_its_own_context_also_where_another_has_its_architecture(name: str, context: int) -> None:
    """Requests of 60,000 tokens were refused for Qwen3-4B-Instruct-2507, and fit its 262,144."""
    assert context == shape(name).context


@pytest.mark.parametrize("name", ["someone/llama-3.1-71b", "phi-9", ""])
def test_unknown_models_are_not_guessed(name: str) -> None:
    assert find_shape(name) is None


def test_known_models_have_as_many_parameters_as_their_names_say() -> None:
    named = {"qwen3-8b": 8.2, "qwen2.5-72b": 72.7, "qwen3-30b-a3b": 30.5, "glm-4.5-air": 106.9, "kimi-k2": 1026}
    assert named.keys() <= KNOWN.keys()
    assert [pytest.approx(value, rel=0.01) for value in named.values()] == [
        shape(name).parameters / 1e9 for name in named
    ]


def test_a_folder_is_read() -> None:
    demo = load_shape(str(MODEL_DIR))
    assert 2.6e6 == pytest.approx(demo.parameters, rel=0.05)
    assert (3, 4, 32) == (demo.layers, demo.kv_heads, demo.head_dim)


def test_a_model_in_the_working_folder_has_that_folders_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Observations of several models would otherwise count for one without a name."""
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(KNOWN["llama-3.1-8b"])))
    monkeypatch.chdir(folder)
    assert ["My-Llama"] * 4 == [read_config(Path(each)).name for each in (".", "config.json", folder, "../My-Llama/")]


def test_a_byte_order_mark_is_no_part_of_a_config(tmp_path: Path) -> None:
    config = (MODEL_DIR / "config.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(config, encoding="utf-8-sig")
    assert 3 == read_config(tmp_path).layers


def test_a_wrong_config_names_field_and_value(tmp_path: Path) -> None:
    config = json.loads((MODEL_DIR / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": "wide"}))
    with pytest.raises(SettingsError, match=r"hidden_size must be a whole number of at least 1, got 'wide'"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("text_config", ["a"], "text_config must be one JSON object, got ['a']"),
        ("quantization_config", "fp8", "quantization_config must be one JSON object, got 'fp8'"),
        ("num_experts", "many", "num_experts must be a whole number of at least 1, got 'many'"),
        ("num_local_experts", -8, "num_local_experts must be a whole number of at least 1, got -8"),
        ("first_k_dense_replace", [0], "first_k_dense_replace must be a whole number of at least 1, got [0]"),
        ("decoder_sparse_step", 1.5, "decoder_sparse_step must be a whole number of at least 1, got 1.5"),
        ("n_shared_experts", math.inf, "n_shared_experts must be a whole number of at least 1, got inf"),
        ("q_lora_rank", "1536", "q_lora_rank must be a whole number of at least 1, got '1536'"),
    ],
)
def test_fields_that_may_be_missing_are_checked_too(field: str, value: object, said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"model x: config.json: {said}")):
        shape_of("x", {**KNOWN["deepseek-v3"], field: value})


def test_more_dense_layers_than_there_are_leave_no_experts() -> None:
    dense = shape_of("x", {**KNOWN["deepseek-v3"], "first_k_dense_replace": 100})
    assert dense.experts is not None
    assert (0, True) == (dense.experts.parameters, dense.parameters > 0)


@pytest.mark.parametrize("name", ["h100_sxm", "NVIDIA H100", "H100-SXM5-80GB"])
def test_systems_are_recognised(name: str) -> None:
    found = find_gpu(name)
    assert found is not None
    assert "h100" == found.name


def test_unknown_accelerators_are_named() -> None:
    with pytest.raises(SettingsError, match="'tpu' is not in the table; known: a10"):
        load_gpu("tpu")


def test_the_demo_model_has_its_own_name() -> None:
    assert "demo" == load_shape("demo").name
