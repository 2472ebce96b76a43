"""Well-known architectures, in the terms of their config.json. Other models come as a folder or a config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cluster.errors import SettingsError
from cluster.nearest import did_you_mean
from loadtest.plan.engine.shapes import ModelShape, read_config, shape_of

_COLUMNS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


def _row(*values: int, **more: Any) -> Mapping[str, Any]:
    return MappingProxyType({**dict(zip(_COLUMNS, values, strict=True)), **more})


def _experts(total: int, active: int, width: int, **more: Any) -> dict[str, Any]:
    return {"num_experts": total, "num_experts_per_tok": active, "moe_intermediate_size": width, **more}


def _latent(queries: int | None = 1536, values: int = 128) -> dict[str, Any]:
    return {
        "q_lora_rank": queries,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": values,
    }


_FP8 = {"quantization_config": {"quant_method": "fp8"}}
_MXFP4 = {"quantization_config": {"quant_method": "mxfp4"}}
_TIED = {"tie_word_embeddings": True}

KNOWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # dense
        "llama-2-7b": _row(4096, 32, 32, 32, 128, 11008, 32000, 4096),
        "llama-2-13b": _row(5120, 40, 40, 40, 128, 13824, 32000, 4096),
        "llama-2-70b": _row(8192, 80, 64, 8, 128, 28672, 32000, 4096),
        "llama-3-8b": _row(4096, 32, 32, 8, 128, 14336, 128256, 8192),
        "llama-3-70b": _row(8192, 80, 64, 8, 128, 28672, 128256, 8192),
        "llama-3.1-8b": _row(4096, 32, 32, 8, 128, 14336, 128256, 131072),
        "llama-3.1-70b": _row(8192, 80, 64, 8, 128, 28672, 128256, 131072),
        "llama-3.1-405b": _row(16384, 126, 128, 8, 128, 53248, 128256, 131072),
        "llama-3.2-1b": _row(2048, 16, 32, 8, 64, 8192, 128256, 131072, **_TIED),
        "llama-3.2-3b": _row(3072, 28, 24, 8, 128, 8192, 128256, 131072, **_TIED),
        "llama-3.3-70b": _row(8192, 80, 64, 8, 128, 28672, 128256, 131072),
        "mistral-7b": _row(4096, 32, 32, 8, 128, 14336, 32768, 32768),
        "mistral-small-24b": _row(5120, 40, 32, 8, 128, 32768, 131072, 32768),
        "qwen2.5-7b": _row(3584, 28, 28, 4, 128, 18944, 152064, 32768),
        "qwen2.5-14b": _row(5120, 48, 40, 8, 128, 13824, 152064, 32768),
        "qwen2.5-32b": _row(5120, 64, 40, 8, 128, 27648, 152064, 32768),
        "qwen2.5-72b": _row(8192, 80, 64, 8, 128, 29568, 152064, 32768),
        "qwen3-0.6b": _row(1024, 28, 16, 8, 128, 3072, 151936, 40960, **_TIED),
        "qwen3-1.7b": _row(2048, 28, 16, 8, 128, 6144, 151936, 40960, **_TIED),
        "qwen3-4b": _row(2560, 36, 32, 8, 128, 9728, 151936, 40960, **_TIED),
        "qwen3-8b": _row(4096, 36, 32, 8, 128, 12288, 151936, 40960),
        "qwen3-14b": _row(5120, 40, 40, 8, 128, 17408, 151936, 40960),
        "qwen3-32b": _row(5120, 64, 64, 8, 128, 25600, 151936, 40960),
        # mixtures of experts
        "mixtral-8x7b": _row(4096, 32, 32, 8, 128, 14336, 32000, 32768, **_experts(8, 2, 14336)),
        "mixtral-8x22b": _row(6144, 56, 48, 8, 128, 16384, 32768, 65536, **_experts(8, 2, 16384)),
        "qwen3-30b-a3b": _row(2048, 48, 32, 4, 128, 6144, 151936, 40960, **_experts(128, 8, 768)),
        "qwen3-235b-a22b": _row(4096, 94, 64, 4, 128, 12288, 151936, 40960, **_experts(128, 8, 1536)),
        "gpt-oss-20b": _row(2880, 24, 64, 8, 64, 2880, 201088, 131072, **_experts(32, 4, 2880), **_MXFP4),
        "gpt-oss-120b": _row(2880, 36, 64, 8, 64, 2880, 201088, 131072, **_experts(128, 4, 2880), **_MXFP4),
        "minimax-m2": _row(3072, 62, 48, 8, 128, 1536, 200064, 196608, **_experts(256, 8, 1536), **_FP8),
        "glm-4.5": _row(
            5120, 92, 96, 8, 128, 12288, 151552, 131072,
            **_experts(160, 8, 1536, n_shared_experts=1, first_k_dense_replace=3),
        ),
        "glm-4.5-air": _row(
            4096, 46, 96, 8, 128, 10944, 151552, 131072,
            **_experts(128, 8, 1408, n_shared_experts=1, first_k_dense_replace=1),
        ),
        # latent attention
        "deepseek-v2-lite": _row(
            2048, 27, 16, 16, 192, 10944, 102400, 163840,
            **_experts(64, 6, 1408, n_shared_experts=2, first_k_dense_replace=1), **_latent(None),
        ),
        "deepseek-v3": _row(
            7168, 61, 128, 128, 192, 18432, 129280, 163840,
            **_experts(256, 8, 2048, n_shared_experts=1, first_k_dense_replace=3), **_latent(), **_FP8,
        ),
        "kimi-k2": _row(
            7168, 61, 64, 64, 192, 18432, 163840, 131072,
            **_experts(384, 8, 2048, n_shared_experts=1, first_k_dense_replace=1), **_latent(), **_FP8,
        ),
    }
)  # fmt: skip

_SAME = {
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-r1-0528": "deepseek-v3",
    "deepseek-v3-0324": "deepseek-v3",
    "meta-llama-3-8b": "llama-3-8b",
    "meta-llama-3-70b": "llama-3-70b",
    "qwen3-30b-a3b-2507": "qwen3-30b-a3b",
    "qwen3-235b-a22b-2507": "qwen3-235b-a22b",
}
_ENDINGS = re.compile(
    r"-(instruct|chat|hf|base|it|thinking|fp8|fp4|nvfp4|mxfp4|bf16|fp8-dynamic|fp8-kv|awq|gptq|int4|int8|quantized\.\w+|v0\.\d"
    r"|0905|2501)$"
)


def find_shape(name: str) -> ModelShape | None:
    """Return a well-known model by its hub id or short name; None for an unknown one."""
    plain = name.strip().rstrip("/").rsplit("/", 1)[-1].lower().replace("_", "-")
    while True:
        plain = _SAME.get(plain, plain)
        for known in (plain, plain.removeprefix("meta-"), plain.replace("llama3", "llama-3", 1)):
            if known in KNOWN:
                return shape_of(known, KNOWN[known])
        shorter = _ENDINGS.sub("", plain).replace("-instruct-", "-").replace("-thinking-", "-")
        if shorter == plain:
            return None
        plain = shorter


def load_shape(model: str) -> ModelShape:
    """Return the architecture of a folder, a config.json, "demo", or a well-known model.

    Raises:
        SettingsError: the model is none of these.
    """
    if model == "demo":
        from deployments.engines.factory import resolve_model

        # The name is "demo", not the folder of its files.
        return replace(read_config(resolve_model(model)), name=model)
    path = Path(model).expanduser()
    if path.exists():
        return read_config(path)
    shape = find_shape(model)
    if shape is None:
        near = did_you_mean(model, KNOWN)
        raise SettingsError(
            f"model: {model!r} is no local folder, no config.json and no known model; known: "
            f"{', '.join(sorted(KNOWN))}{near}"
        )
    return shape
