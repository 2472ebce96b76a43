"""Configurations as many families write them: layers, experts, towers and precisions are read, never guessed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import pytest

from cluster.errors import SettingsError
from loadtest.plan.engine.architectures import KNOWN, find_shape, load_shape
from loadtest.plan.engine.gpus import find_gpu
from loadtest.plan.engine.memory import size
from loadtest.plan.engine.shapes import TIED, ModelShape, shape_of

LLAMA: Mapping[str, Any] = KNOWN["llama-3.1-8b"]


def shape(name: str) -> ModelShape:
    found = find_shape(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 108.6, 17.0),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", 401.6, 17.0),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 80.0, 3.6),
        ("Qwen/Qwen3.5-397B-A17B", 397.0, 17.0),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 480.0, 35.0),
        ("Qwen/QwQ-32B", 32.8, 32.0),
        ("google/gemma-2-9b-it", 9.24, 9.24),
        ("google/gemma-3-27b-it", 27.4, 27.0),
        ("microsoft/phi-4", 14.7, 14.2),
        ("zai-org/GLM-5", 744.0, 40.0),
        ("moonshotai/Kimi-K2.5", 1027.0, 32.0),
        ("deepseek-ai/DeepSeek-V3.2", 671.0, 37.0),
        ("mistralai/Mistral-Nemo-Instruct-2407", 12.2, 11.6),
        ("mistralai/Mistral-Large-Instruct-2411", 122.6, 122.2),
        ("codellama/CodeLlama-34b-Instruct-hf", 33.7, 33.5),
        ("01-ai/Yi-34B-Chat", 34.4, 33.9),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", 8.9, 8.3),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B", 31.6, 3.2),
        ("ibm-granite/granite-3.3-8b-instruct", 8.17, 8.17),
        ("ibm-granite/granite-4.0-h-small", 32.2, 9.0),
        ("BAAI/bge-m3", 0.568, 0.568),
    ],
)
def test_a_model_has_as_many_parameters_as_its_card_says(name: str, billions: float, active: float) -> None:
    found = shape(name)
    assert billions == pytest.approx((found.parameters + found.tower) / 1e9, rel=0.02)
    assert active == pytest.approx(found.active_parameters / 1e9, rel=0.12)


def test_windowed_layers_keep_their_window_and_the_others_all_tokens() -> None:
    """gemma-3-27b: 10 of 62 layers attend to all tokens, the others to 1,024."""
    found = shape("gemma-3-27b")
    each = 2 * 16 * 128 * 2
    assert 62 * each == found.kv_bytes()
    assert (10 + 52 * 1024 / 8192) * each == pytest.approx(found.kv_bytes(length=8192))
    assert 62 * each == found.kv_bytes(length=500)


@pytest.mark.parametrize(
    ("more", "full"),
    [
        ({"layer_types": ["sliding_attention"] * 24 + ["full_attention"] * 8, "sliding_window": 512}, 8),
        ({"sliding_window": 4096, "sliding_window_pattern": 4}, 8),
        ({"sliding_window": 4096, "use_sliding_window": False}, 32),
        ({"sliding_window": 200_000}, 32),
        ({"attention_chunk_size": 8192}, 8),
        ({"full_attention_interval": 4, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 16}, 8),
        ({"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16}, 4),
        ({"layers_block_type": ["mamba"] * 30 + ["attention"] * 2, "mamba_d_state": 16}, 2),
        ({"layers_block_type": ["mamba", "mlp", "attention", "mlp"], "mamba_d_state": 16}, 1),
        ({"layer_types": ["indexed_attention"] * 32}, 32),
        ({"hybrid_layer_pattern": [0, *[1] * 30, 0], "sliding_window": 128, "attention_chunk_size": 128}, 2),
        ({"attn_layer_indices": [9, 18, 27], "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 16}, 3),
        ({"model_type": "bailing_moe_linear", "layer_group_size": 8}, 4),
        ({"layer_types": ["attention"] * 32, "mamba_d_state": 16}, 32),
    ],
)
def test_layers_that_attend_to_all_tokens_are_counted(more: dict[str, Any], full: int) -> None:
    assert full == shape_of("x", {**LLAMA, **more}).attending


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"layer_types": ["full_attention", "telepathy"]}, "layer_types must be a list of .* got 'telepathy'"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window must be there"),
        ({"layer_types": ["linear_attention"] * 32}, "linear_num_value_heads or mamba_n_heads"),
        ({"hybrid_override_pattern": "M-X"}, "hybrid_override_pattern must consist of"),
        ({"mamba_d_state": 16}, "mamba_d_state is of layers with a state, and layer_types must say which"),
        ({"layers_block_type": ["hybrid"] * 32, "num_mem_blocks": 2}, "num_mem_blocks must not be there: weights that"),
        ({"vision_config": {"patch_size": 14}}, "vision_config: .*hidden_size and num_hidden_layers must be there"),
        ({"num_local_experts": 8}, "num_experts_per_tok must be a whole number of at least 1, got None"),
    ],
)
def test_what_is_not_understood_is_named(more: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        shape_of("x", {**LLAMA, **more})


FALCON = {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32}
DBRX = {
    "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768, "vocab_size": 100352,
    "attn_config": {"kv_n_heads": 8},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}  # fmt: skip
ATTENTION, WITHOUT, LINEAR = {"n_heads_in_group": 8}, {"no_op": True}, {"replace_with_linear": True}


@pytest.mark.parametrize(
    ("config", "heads", "billions"),
    [
        # Files of newer versions of transformers have the number too, which the flag overrules.
        ({**FALCON, "multi_query": True, "num_kv_heads": 71, "vocab_size": 65024}, 1, 6.92),
        (
            {**FALCON, "new_decoder_architecture": True, "multi_query": True, "num_kv_heads": 8, "vocab_size": 65024},
            8,
            7.05,
        ),
        (DBRX, 8, 131.6),
        ({**LLAMA, "num_key_value_heads": None, "num_key_value_heads_per_layer": [4] * 32}, 4, 7.9),
    ],
)
def test_heads_of_keys_and_values_are_read_where_a_family_writes_them(
    config: Mapping[str, Any], heads: int, billions: float
) -> None:
    found = shape_of("x", config)
    assert heads == found.kv_heads
    assert billions == pytest.approx(found.parameters / 1e9, rel=0.01)


def test_layers_that_differ_are_counted_one_by_one() -> None:
    """Nemotron-Super drops attention from some layers of a Llama, and narrows the feed-forward part of others."""
    wide, narrow, none = {"ffn_mult": 5.25}, {"ffn_mult": 1.3125}, {"no_op": True}
    blocks = [(ATTENTION, wide), (WITHOUT, narrow), (ATTENTION, none), (LINEAR, wide)]
    plain = {**LLAMA, "num_key_value_heads": None, "intermediate_size": None, "num_hidden_layers": 4}
    found = shape_of("x", {**plain, "block_configs": [{"attention": a, "ffn": f} for a, f in blocks]})
    assert (4, 2, 32 // 8) == (found.layers, found.attending, found.kv_heads)
    assert 2 * 2 * 4 * 128 * 2 == found.kv_bytes()
    attention, feed = 2 * (2 * 4096 * 4096 + 2 * 4096 * 512), 3 * 4096 * (2 * 14336 + 3584)
    assert 2 * 128256 * 4096 + attention + feed == pytest.approx(found.parameters, rel=0.001)


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ([{"attention": ATTENTION}], r"block_configs\[0\] must have the objects attention and ffn"),
        ([{"attention": {}, "ffn": {"no_op": True}}], "n_heads_in_group must be a whole number"),
        ([{"attention": ATTENTION, "ffn": {"ffn_mult": "wide"}}], "ffn_mult must be a number above 0, got 'wide'"),
        (
            [{"attention": {"n_heads_in_group": each}, "ffn": {"no_op": True}} for each in (4, 8)],
            r"n_heads_in_group must be the same number in all layers, got \[8, 4\]",
        ),
    ],
)
def test_a_layer_that_is_not_understood_is_named(blocks: list[Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        shape_of("x", {**LLAMA, "block_configs": blocks})


def test_states_of_fixed_size_take_memory_per_sequence_and_none_per_token() -> None:
    """Of 48 layers of Qwen3-Next 12 keep keys and values: 2 heads of 256."""
    found = shape("qwen3-next-80b-a3b")
    assert 12 * 2 * 2 * 256 * 2 == found.kv_bytes()
    assert found.recurrent is not None
    assert 36 * 32 * 128 * 128 * 4 == found.recurrent.state_bytes
    gpu = find_gpu("h100")
    assert gpu is not None
    few, many = (size(found, gpu, 4, "fp8", sequences=count) for count in (1, 64))
    assert 63 * found.recurrent.state_bytes / 4 == pytest.approx(many.overhead - few.overhead)


def test_layers_with_attention_beside_a_state_have_both() -> None:
    """Falcon-H1-34B: every layer keeps keys and values, and a state."""
    config = {
        "model_type": "falcon_h1", "hidden_size": 5120, "intermediate_size": 21504, "num_hidden_layers": 72,
        "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 261120,
        "mamba_n_heads": 32, "mamba_d_head": 128, "mamba_d_state": 256, "mamba_n_groups": 2, "mamba_d_ssm": 4096,
    }  # fmt: skip
    found = shape_of("x", config)
    assert 33.6e9 == pytest.approx(found.parameters, rel=0.01)
    assert 72 * 2 * 4 * 128 * 2 == found.kv_bytes()
    assert found.recurrent is not None
    assert 72 * 4096 * 256 * 4 == found.recurrent.state_bytes


def test_an_encoder_of_images_takes_memory_in_16_bits() -> None:
    plain, seeing = shape("mistral-small-24b"), shape("mistral-small-3.2-24b")
    gpu = find_gpu("l40s")
    assert gpu is not None
    assert 0.4e9 == pytest.approx(seeing.tower, rel=0.05)
    assert size(seeing, gpu, 2, "fp8").weights - size(plain, gpu, 2, "fp8").weights == pytest.approx(seeing.tower)


def test_names_of_other_families_are_read() -> None:
    gpt2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    found = shape_of("gpt2", {**gpt2, "tie_word_embeddings": True})
    assert (12, 12, 1024) == (found.layers, found.heads, found.context)
    assert 124e6 == pytest.approx(found.parameters, rel=0.02)


def test_text_parts_are_found_within_models_of_several_kinds_of_input() -> None:
    around = {"text_config": dict(LLAMA), "vision_config": {"hidden_size": 1024, "num_hidden_layers": 24}}
    found = shape_of("x", around)
    assert load_shape("llama-3.1-8b").parameters == found.parameters
    assert found.tower > 0


def test_an_encoder_has_no_kv_cache() -> None:
    found = shape("bge-m3")
    assert found.encoder
    assert 0.0 == found.kv_bytes()


@pytest.mark.parametrize("family", ["apertus", "arcee", "jais2", "nanochat", "lfm2", "gemma4_text"])
def test_a_family_is_as_large_as_transformers_builds_it(family: str) -> None:
    """They were 27 to 38 % too large, and Gemma 4 with vectors per layer 42 % too small."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config = transformers.CONFIG_MAPPING[family]()
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    read = shape_of(family, json.loads(config.to_json_string(use_diff=False)))
    assert sum(each.numel() for each in built.parameters()) == pytest.approx(read.parameters, rel=0.03)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok must be at most the number of experts, 8, got 9"),
        ({"quantization_config": {"quant_method": "modelopt", "quantization": 1.5}}, "quantization_config.quant_algo"),
    ],
)
def test_fields_that_contradict_each_other_are_named(more: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        shape_of("x", {**KNOWN["mixtral-8x7b"], **more})


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        ({"model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
          "num_key_value_heads": 4, "num_hidden_layers": 26, "head_dim": 256, "vocab_size": 256000,
          "sliding_window": 4096}, 2.61),
        ({"model_type": "cohere2", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
          "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 256000, "sliding_window": 4096}, 8.03),
        ({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
         0.124),
    ],
)  # fmt: skip
def test_an_embedding_that_is_the_output_layer_too_counts_once(config: dict[str, Any], billions: float) -> None:
    """Files of these families do not say so, because it is the default."""
    assert billions == pytest.approx(shape_of("x", config).parameters / 1e9, rel=0.02)
    apart = shape_of("x", {**config, "tie_word_embeddings": False})
    assert apart.parameters - shape_of("x", config).parameters == apart.embedding > 0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_families_whose_embedding_is_the_output_layer_are_those_of_transformers() -> None:
    from transformers import CONFIG_MAPPING

    for family in TIED:
        assert CONFIG_MAPPING[family]().get_text_config().tie_word_embeddings, family
    for family in ("llama", "qwen2", "mistral", "mixtral", "phi3", "gpt_oss", "deepseek_v3", "glm4_moe", "jamba"):
        assert not CONFIG_MAPPING[family]().tie_word_embeddings, family
        assert family not in TIED


def test_shared_experts_and_dense_layers_are_not_routed() -> None:
    scout = shape("llama-4-scout")
    assert scout.experts is not None
    routed = 48 * 16 * 3 * 5120 * 8192
    assert routed == scout.experts.parameters
    assert 48 * 3 * 5120 * 8192 == pytest.approx(scout.parameters - routed - 2 * 202048 * 5120, rel=0.7)


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (
            {
                "model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
                "num_attention_heads": 32, "kv_channels": 128, "vocab_size": 151936, "seq_length": 8192,
                "tie_word_embeddings": False,
            },
            7.72,
        ),
        (
            {
                "model_type": "git", "hidden_size": 8192, "intermediate_size": 32768, "moe_intermediate_size": 16384,
                "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
                "num_local_experts": 8, "num_experts_per_tok": 2, "residual_moe": True, "vocab_size": 131072,
                "max_position_embeddings": 131072,
            },
            269.5,
        ),
    ],
    ids=["Qwen-7B", "Grok-2"],
)  # fmt: skip
def test_odd_feed_forward_parts_are_as_large_as_published(config: dict[str, Any], billions: float) -> None:
    """The first Qwen's width is of gate and values together; Grok-2 has a dense part beside its experts."""
    assert billions == pytest.approx(shape_of("x", config).parameters / 1e9, rel=0.01)
