"""Families whose layers are not all alike: sizes as transformers builds them, and what layers keep of a token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from cluster.errors import SettingsError
from loadtest.plan.engine.architectures import KNOWN
from loadtest.plan.engine.shapes import ModelShape, SlidingWindow, shape_of

LLAMA: Mapping[str, Any] = KNOWN["llama-3.1-8b"]
GEMMA_4_26B = {
    "enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704, "hidden_size": 2816,
    "intermediate_size": 2112, "num_attention_heads": 16, "num_key_value_heads": 8, "hidden_size_per_layer_input": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("gemma4_text", GEMMA_4_26B),
        ("gemma4_text", {"num_kv_shared_layers": 10, "use_double_wide_mlp": True}),
        ("gemma4_text", {"num_global_key_value_heads": 2, "global_head_dim": 512, "num_key_value_heads": 8}),
        ("gemma3n_text", {}),
        ("kimi_linear", {}),
    ],
    ids=["a dense part beside experts", "wider parts", "wider heads", "widths by layer", "states by other names"],
)
def test_a_family_is_as_large_as_transformers_builds_it(family: str, more: dict[str, Any]) -> None:
    """Gemma 4 lacked its dense part beside the experts, and heads of layers that attend to all; others were refused."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config = transformers.CONFIG_MAPPING[family](**more)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    read = shape_of(family, json.loads(config.to_json_string(use_diff=False)))
    assert sum(each.numel() for each in built.parameters()) == pytest.approx(read.parameters, rel=0.011)


LONGCAT = {
    "model_type": "longcat_flash", "hidden_size": 6144, "num_layers": 28, "num_attention_heads": 64,
    "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "n_routed_experts": 512, "zero_expert_num": 256,
    "moe_topk": 12, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "vocab_size": 131072,
}  # fmt: skip
HUNYUAN = {
    "model_type": "hunyuan_v1_moe", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "attention_head_dim": 128, "intermediate_size": 3072,
    "moe_intermediate_size": [3072] * 32, "num_experts": 64, "moe_topk": [8] * 32, "num_shared_expert": [1] * 32,
    "vocab_size": 128167, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "billions", "active"), [(LONGCAT, 560.0, 27.0), (HUNYUAN, 80.4, 13.0)], ids=["LongCat", "Hunyuan"]
)
def test_published_sizes_are_read(config: dict[str, Any], billions: float, active: float) -> None:
    """LongCat-Flash was read as 545 billion, 16 active: its layers count twice, and 4 of 12 experts are idle."""
    found = shape_of("x", config)
    assert billions == pytest.approx(found.parameters / 1e9, rel=0.01)
    assert active == pytest.approx(found.active_parameters / 1e9, rel=0.03)


def test_each_layer_of_longcat_keeps_two_latent_vectors() -> None:
    found = shape_of("x", LONGCAT)
    assert 2 * 28 * (512 + 64) * 2 == found.kv_bytes()
    assert found.experts is not None
    assert (28, 8) == (found.experts.layers, found.experts.active)


def windowed(**more: Any) -> ModelShape:
    """A model of 24 layers with a window and 8 without."""
    kinds = (["sliding_attention"] * 3 + ["full_attention"]) * 8
    return shape_of("x", {**LLAMA, "layer_types": kinds, "sliding_window": 512, **more})


@pytest.mark.parametrize(
    "more",
    [
        {"num_global_key_value_heads": 4, "global_head_dim": 512},
        {"per_layer_config": {f"{at:02}": {"head_dim": 512, "num_key_value_heads": 4} for at in range(3, 32, 4)}},
        {"num_key_value_heads": 4, "head_dim": 512, "swa_num_key_value_heads": 8, "swa_head_dim": 128},
    ],
    ids=["Gemma 4 as published", "Gemma 4 as saved anew", "MiMo-V2"],
)
def test_layers_with_a_window_may_have_other_heads(more: dict[str, Any]) -> None:
    """All layers counted as one kind; half of the KV cache of Gemma 4's small models was not planned for."""
    found = windowed(**more)
    assert (4, 512, SlidingWindow(24, 512, 2 * 8 * 128)) == (found.kv_heads, found.head_dim, found.window)
    assert 2 * (8 * 2 * 4 * 512 + 24 * 2 * 8 * 128) == found.kv_bytes()
    assert 2 * (8 * 2 * 4 * 512 + 24 * 2 * 8 * 128 / 8) == found.kv_bytes(length=4096)


def test_layers_that_read_the_cache_of_others_keep_none() -> None:
    """Gemma 3n and 4: the last layers. They attend as all do."""
    found = windowed(num_kv_shared_layers=10)
    assert (8, (3, 7)) == (found.attending, found.borrowing)
    assert 2 * 2 * 8 * 128 * (32 - 10) == found.kv_bytes()
    # A window that is no shorter than the context is none.
    plain = windowed(num_kv_shared_layers=10, sliding_window=131072)
    assert (32, (10, 0)) == (plain.attending, plain.borrowing)


def test_every_nth_layer_without_a_window_is_counted_by_its_other_name() -> None:
    """Trinity's files name both; all layers counted as ones with a window, a hundredth of the KV cache."""
    found = shape_of("x", {**LLAMA, "sliding_window": 2048, "global_attn_every_n_layers": 4})
    assert (8, SlidingWindow(24, 2048)) == (found.attending, found.window)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"num_hidden_groups": 1}, "num_hidden_groups must not be there: weights that layers share"),
        ({"H_cycles": 2}, "H_cycles must not be there: layers that run more than once"),
        ({"ngram_vocab_size_base": 20_000_000}, "ngram_vocab_size_base must not be there: embeddings of n-grams"),
        ({"moe_intermediate_size": [1536, 512], "num_experts": 8, "num_experts_per_tok": 2}, r"got \[1536, 512\]"),
        ({"per_layer_config": {"1": {"head_dim": 512}}}, "per_layer_config must have head_dim or num_key_value_heads"),
        ({"num_kv_shared_layers": 32}, "num_kv_shared_layers must be below the number of layers, 32, got 32"),
    ],
)
def test_what_is_not_understood_is_named(more: dict[str, Any], said: str) -> None:
    """ALBERT was read as 11 times its size, HRM as 3 times."""
    with pytest.raises(SettingsError, match=said):
        shape_of("x", {**LLAMA, **more})


def test_models_that_fill_gaps_generate_no_text() -> None:
    """EuroBERT was planned with a KV cache and an output layer."""
    found = shape_of("x", {**LLAMA, "model_type": "eurobert", "architectures": ["EuroBertForMaskedLM"]})
    assert found.encoder
    assert 0.0 == found.kv_bytes()


@pytest.mark.parametrize(
    ("more", "contexts"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, (65_536, 0)),
        ({"rope_parameters": {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0}}, (16_384, 0)),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, (16_384, 0)),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, (16_384, 0)),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, (16_384, 0)),
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, (16_384, 4096)),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096}}, (16_384, 4096)),
    ],
)
def test_contexts_are_as_vllm_takes_them(more: dict[str, Any], contexts: tuple[int, int]) -> None:
    """DeepSeek-Coder's prompts were refused from a quarter of its context on."""
    found = shape_of("x", {**LLAMA, "max_position_embeddings": 16_384, **more})
    assert contexts == (found.context, found.untold_context)
