"""Precisions of weights, as tools that quantise write them in configurations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import SettingsError
from loadtest.plan.engine.architectures import KNOWN, load_shape
from loadtest.plan.engine.gpus import GPUS
from loadtest.plan.engine.precision import weights_of
from loadtest.plan.engine.prior import prior
from loadtest.plan.engine.shapes import read_config, shape_of

LLAMA: Mapping[str, Any] = KNOWN["llama-3.1-8b"]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "fp4"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "int4"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "int8"),
        ("nvidia/DeepSeek-R1-0528-NVFP4", "fp4"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "int4"),
        ("Qwen/Qwen3-32B-FP8", "fp8"),
        ("moonshotai/Kimi-K2.5", "int4"),
        ("unsloth/Qwen3-32B-bnb-4bit", "int4"),
        ("meta-llama/Llama-3.1-8B-Instruct", "bf16"),
    ],
)
def test_the_precision_in_a_name_is_that_of_the_weights(name: str, precision: str) -> None:
    assert precision == load_shape(name).native


@pytest.mark.parametrize(
    ("section", "precision"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, "mxfp4"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp4"}, "mxfp4"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "nv_fp"}, "fp4"),
        ({"quant_method": "auto-round", "bits": 8, "data_type": "fp8"}, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        (
            # As AMD publishes Llama-3.1 with an 8-bit cache.
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
                "layer_quant_config": {"*k_proj": {"weight": {"dtype": "fp8_e4m3"}, "output_tensors": {}}},
            },
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"}}},
            },
            "fp4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
        ),
    ],
)
def test_tools_that_quantise_are_read(section: dict[str, Any], precision: str) -> None:
    assert precision == shape_of("x", {**LLAMA, "quantization_config": section}).native


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"quant_method": "quip"}, "quantization_config.quant_method must be one of"),
        ({"quant_method": "modelopt", "quant_algo": "W2A2"}, "quantization_config.quant_algo must be one of"),
        ({"quant_method": "modelopt"}, "quantization_config.quant_algo must be one of"),
        ({"quant_method": "gptq", "bits": 3}, "quantization_config.bits must be 4 or 8, got 3"),
        ({"quant_method": "gptq"}, "quantization_config.bits must be 4 or 8, got None"),
        (
            {"quant_method": "auto-round", "bits": 4, "data_type": "log"},
            "quantization_config.data_type must be int, fp",
        ),
        ({"quant_method": "bitsandbytes"}, "quantization_config.load_in_4bit or load_in_8bit must be true"),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
                "layer_quant_config": {"*experts*": {"weight": {"dtype": "fp4"}}},
            },
            "quantization_config.layer_quant_config must have weights in fp8_e4m3 as all layers have, got .'fp4'.",
        ),
        ({"quant_method": "compressed-tensors"}, "quantization_config.config_groups must be an object with a group"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 2, "type": "int"}}}},
            "quantization_config.config_groups.g.weights.num_bits must be 4 or 8, got 2",
        ),
    ],
)
def test_an_unknown_quantisation_is_an_error_that_names_the_field(section: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        shape_of("x", {**LLAMA, "quantization_config": section})


def test_modelopts_own_file_beside_the_config_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(LLAMA)))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert "fp4" == read_config(tmp_path).native


def test_only_experts_are_quantised_where_the_config_leaves_attention_out() -> None:
    """Kimi-K2.5 is published with 594 GB: experts in 4 bits, the rest in 16."""
    found = load_shape("kimi-k2.5")
    assert found.experts is not None
    rest = found.parameters - found.experts.parameters
    weights = weights_of(found, "int4")
    assert 2 * rest == pytest.approx(weights.total_bytes - weights.expert_bytes)
    assert 594e9 == pytest.approx(weights.total_bytes, rel=0.05)


INT4 = {"g": {"weights": {"num_bits": 4, "type": "int"}, "targets": ["Linear"]}}


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.0.self_attn*"]},
        {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["self_attn", "shared_expert", "mlp.gate"]},
        {"quant_method": "fp8", "ignored_layers": ["model.layers.0.self_attn.q_proj"]},
        {"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*attn.*": {}, "+:.*down.*": {"bits": 8}}},
        {"quant_method": "auto-round", "bits": 4, "extra_config": {"model.layers.0.self_attn.q_proj": {"bits": 16}}},
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}, "exclude": ["*self_attn*"]},
        {"quant_method": "compressed-tensors", "config_groups": INT4, "ignore": [r"re:.*\.[a-z_]*attn\..*"]},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"g": {**INT4["g"], "targets": ["re:.*mlp.experts.*"]}},
        },
    ],
)
def test_attention_that_a_tool_left_out_is_in_16_bits(section: dict[str, Any]) -> None:
    """DeepSeek-R1 in NVFP4 has 11 billion parameters of attention, in 23 GB and not in 6."""
    found = shape_of("x", {**KNOWN["deepseek-v3"], "quantization_config": section})
    assert found.experts is not None
    weights = weights_of(found, found.native)
    assert 2 * (found.parameters - found.experts.parameters) == pytest.approx(
        weights.total_bytes - weights.expert_bytes
    )


@pytest.mark.parametrize(
    "left_out",
    [
        "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj",
        "re:.*audio_tower.layers.*self_attn.*",
        "model.layers.3.self_attn.q_norm",
        "model.layers.0.self_attn.indexer.weights_proj",
        "mtp.layers.0.self_attn.q_proj",
        "model.layers.32.self_attn.q_proj",
    ],
)
def test_what_is_no_attention_of_the_own_layers_tells_nothing_of_it(left_out: str) -> None:
    """llm-compressor lists the encoder of images of Gemma 3 by its modules, Qwen3-Next in fp8 lists norms, and layers
    behind the last one only draft. Their attention was taken to be in 16 bits.
    """
    lists = ("ignore", "ignored_layers", "exclude_modules", "modules_to_not_convert")
    for name in lists:
        section = {"quant_method": "fp8", name: ["lm_head", left_out]}
        assert 0 == shape_of("x", {**LLAMA, "quantization_config": section}).wide
        assert not shape_of(
            "x", {**KNOWN["qwen3-30b-a3b"], "num_hidden_layers": 32, "quantization_config": section}
        ).experts_only


def test_attention_that_a_tool_left_out_of_a_dense_model_is_in_16_bits() -> None:
    """All of it counted as fp8: 6.98 GB, and 8.32 GB in truth."""
    section = {"quant_method": "fp8", "ignored_layers": ["model.layers.0.self_attn.q_proj"]}
    found = shape_of("x", {**LLAMA, "quantization_config": section})
    attention = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    assert attention == weights_of(found, "fp8").wide
    assert found.parameters + attention == weights_of(found, "fp8").total_bytes
    assert 0 == weights_of(found, "int4").wide
    whole, part = (prior(shape_of("x", {**LLAMA, "quantization_config": each}), GPUS["h100"], 1, "fp8").step
                   for each in ({"quant_method": "fp8"}, section))  # fmt: skip
    assert whole(1, 1, 0) < part(1, 1, 0)
    assert whole(1, 4096, 0) < part(1, 4096, 0)


def test_attention_that_modelopts_own_file_leaves_out_is_in_16_bits(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**KNOWN["qwen3-30b-a3b"]}))
    more = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "model.layers.0.self_attn*"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(more))
    assert read_config(tmp_path).experts_only


@pytest.mark.parametrize(
    "section",
    [
        {"ignore": ["re:.*indexer.*", "re:.*mlp.gate$", "re:visual.*", "re:*"], "config_groups": INT4},
        {"ignore": ["lm_head"], "config_groups": {"g": {"weights": INT4["g"]["weights"]}}},
        {"config_groups": {"g": {**INT4["g"], "targets": ["re:.*self_attn.*", "re:.*mlp.*"]}}},
    ],
)
def test_patterns_of_other_layers_leave_attention_quantised(section: dict[str, Any]) -> None:
    found = shape_of(
        "x", {**KNOWN["deepseek-v3"], "quantization_config": {"quant_method": "compressed-tensors", **section}}
    )
    assert not found.experts_only


@pytest.mark.parametrize("sides", [[128, 128], "128x128"])
def test_blocks_of_compressed_tensors_are_read(sides: object) -> None:
    """They can't be split, just as those of FP8's own files."""
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": sides}
    section = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}}
    assert 128 == shape_of("x", {**LLAMA, "quantization_config": section}).block
    weights["block_structure"] = "128"
    with pytest.raises(SettingsError, match=r"g\.weights\.block_structure must be a list of two whole numbers"):
        shape_of("x", {**LLAMA, "quantization_config": section})
