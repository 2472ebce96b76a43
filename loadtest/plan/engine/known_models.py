"""Well-known architectures, in the terms of their config.json."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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


def _linear(value_heads: int) -> dict[str, Any]:
    return {
        "full_attention_interval": 4,
        "linear_num_value_heads": value_heads,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "attn_output_gate": True,
    }


def _windowed(tokens: int, every: int) -> dict[str, Any]:
    """Say that of so many layers one attends to all tokens, and the others to the last ones."""
    return {"sliding_window": tokens, "sliding_window_pattern": every}


def _mamba(heads: int, dim: int, groups: int = 8) -> dict[str, Any]:
    return {"mamba_num_heads": heads, "mamba_head_dim": dim, "ssm_state_size": 128, "n_groups": groups}


def _sees(hidden: int, layers: int, width: int) -> dict[str, Any]:
    return {"vision_config": {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": width}}


_FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
_MXFP4 = {"quantization_config": {"quant_method": "mxfp4"}}
_INT4_EXPERTS = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
        "ignore": ["re:.*self_attn.*"],
    }
}
_SIGLIP, _QWEN_EYE = _sees(1152, 27, 4304), _sees(1152, 27, 4304)
_QWEN3_5: Mapping[str, Any] = {"model_type": "qwen3_5", **_QWEN_EYE}
_LONG_ROPE = {"rope_scaling": {"rope_type": "longrope"}, "original_max_position_embeddings": 4096}
_TIED = {"tie_word_embeddings": True}
_GEMMA_2: Mapping[str, Any] = {"model_type": "gemma2", **_windowed(4096, 2), **_TIED}
_GEMMA_3: Mapping[str, Any] = {"model_type": "gemma3", **_TIED}

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
        "codellama-7b": _row(4096, 32, 32, 32, 128, 11008, 32016, 16384),
        "codellama-13b": _row(5120, 40, 40, 40, 128, 13824, 32016, 16384),
        "codellama-34b": _row(8192, 48, 64, 8, 128, 22016, 32000, 16384),
        "codellama-70b": _row(8192, 80, 64, 8, 128, 28672, 32016, 16384),
        "tinyllama-1.1b": _row(2048, 22, 32, 4, 64, 5632, 32000, 2048),
        "mistral-nemo-12b": _row(5120, 40, 32, 8, 128, 14336, 131072, 131072),
        "mistral-small-3.2-24b": _row(5120, 40, 32, 8, 128, 32768, 131072, 131072, **_sees(1024, 24, 4096)),
        "mistral-large-123b": _row(12288, 88, 96, 8, 128, 28672, 32768, 131072),
        "ministral-8b": _row(4096, 36, 32, 8, 128, 12288, 131072, 32768),
        "codestral-22b": _row(6144, 56, 48, 8, 128, 16384, 32768, 32768),
        "qwen2.5-0.5b": _row(896, 24, 14, 2, 64, 4864, 151936, 32768, **_TIED),
        "qwen2.5-1.5b": _row(1536, 28, 12, 2, 128, 8960, 151936, 32768, **_TIED),
        "qwen2.5-3b": _row(2048, 36, 16, 2, 128, 11008, 151936, 32768, **_TIED),
        "qwen2.5-vl-7b": _row(3584, 28, 28, 4, 128, 18944, 152064, 128000, **_sees(1280, 32, 3420)),
        "qwen2.5-vl-32b": _row(5120, 64, 40, 8, 128, 27648, 152064, 128000, **_sees(1280, 32, 3456)),
        "qwen2.5-vl-72b": _row(8192, 80, 64, 8, 128, 29568, 152064, 128000, **_sees(1280, 32, 3456)),
        "qwen3-vl-8b": _row(4096, 36, 32, 8, 128, 12288, 151936, 262144, **_QWEN_EYE),
        "qwen3-vl-32b": _row(5120, 64, 64, 8, 128, 25600, 151936, 262144, **_QWEN_EYE),
        "qwen3.5-27b": _row(5120, 64, 24, 4, 256, 17408, 248320, 262144, **_linear(48), **_QWEN3_5),
        "gemma-2-2b": _row(2304, 26, 8, 4, 256, 9216, 256000, 8192, **_GEMMA_2),
        "gemma-2-9b": _row(3584, 42, 16, 8, 256, 14336, 256000, 8192, **_GEMMA_2),
        "gemma-2-27b": _row(4608, 46, 32, 16, 128, 36864, 256000, 8192, **_GEMMA_2),
        "gemma-3-1b": _row(1152, 26, 4, 1, 256, 6912, 262144, 32768, **_GEMMA_3, **_windowed(512, 6)),
        "gemma-3-4b": _row(2560, 34, 8, 4, 256, 10240, 262208, 131072, **_GEMMA_3, **_windowed(1024, 6), **_SIGLIP),
        "gemma-3-12b": _row(3840, 48, 16, 8, 256, 15360, 262208, 131072, **_GEMMA_3, **_windowed(1024, 6), **_SIGLIP),
        "gemma-3-27b": _row(5376, 62, 32, 16, 128, 21504, 262208, 131072, **_GEMMA_3, **_windowed(1024, 6), **_SIGLIP),
        "phi-3-medium": _row(5120, 40, 40, 10, 128, 17920, 32064, 131072, **_LONG_ROPE),
        "phi-3.5-mini": _row(3072, 32, 32, 32, 96, 8192, 32064, 131072, **_LONG_ROPE),
        "phi-4": _row(5120, 40, 40, 10, 128, 17920, 100352, 16384),
        "phi-4-mini": _row(3072, 32, 24, 8, 128, 8192, 200064, 131072, **_TIED, **_LONG_ROPE),
        "yi-6b": _row(4096, 32, 32, 4, 128, 11008, 64000, 4096),
        "yi-1.5-9b": _row(4096, 48, 32, 4, 128, 11008, 64000, 4096),
        "yi-34b": _row(7168, 60, 56, 8, 128, 20480, 64000, 4096),
        "granite-3.3-2b": _row(2048, 40, 32, 8, 64, 8192, 49159, 131072, **_TIED),
        "granite-3.3-8b": _row(4096, 40, 32, 8, 128, 12800, 49159, 131072, **_TIED),
        "command-r-35b": _row(8192, 40, 64, 8, 128, 24576, 256000, 131072, **_TIED),
        "command-r-plus-104b": _row(12288, 64, 96, 8, 128, 33792, 256000, 131072, **_TIED),
        "command-a-111b": _row(12288, 64, 96, 8, 128, 36864, 256000, 131072, **_windowed(4096, 4), **_TIED),
        # mixtures of experts
        "llama-4-scout": _row(
            5120, 48, 40, 8, 128, 8192, 202048, 10485760, model_type="llama4_text", intermediate_size_mlp=16384,
            num_local_experts=16, num_experts_per_tok=1, attention_chunk_size=8192, **_sees(1408, 34, 5632),
        ),
        "llama-4-maverick": _row(
            5120, 48, 40, 8, 128, 8192, 202048, 1048576, model_type="llama4_text", intermediate_size_mlp=16384,
            num_local_experts=128, num_experts_per_tok=1, interleave_moe_layer_step=2, attention_chunk_size=8192,
            **_sees(1408, 34, 5632),
        ),
        "qwen3-coder-480b-a35b": _row(6144, 62, 96, 8, 128, 8192, 151936, 262144, **_experts(160, 8, 2560)),
        "qwen3-vl-30b-a3b": _row(
            2048, 48, 32, 4, 128, 6144, 151936, 262144, **_experts(128, 8, 768), **_QWEN_EYE
        ),
        "qwen3-vl-235b-a22b": _row(
            4096, 94, 64, 4, 128, 12288, 151936, 262144, **_experts(128, 8, 1536), **_QWEN_EYE
        ),
        "qwen3-next-80b-a3b": _row(
            2048, 48, 16, 2, 256, 5120, 151936, 262144, model_type="qwen3_next",
            **_experts(512, 10, 512, shared_expert_intermediate_size=512), **_linear(32),
        ),
        "qwen3.5-35b-a3b": _row(
            2048, 40, 16, 2, 256, 512, 248320, 262144,
            **_experts(256, 8, 512, shared_expert_intermediate_size=512), **_linear(32), **_QWEN3_5,
        ),
        "qwen3.5-122b-a10b": _row(
            3072, 48, 32, 2, 256, 1024, 248320, 262144,
            **_experts(256, 8, 1024, shared_expert_intermediate_size=1024), **_linear(64), **_QWEN3_5,
        ),
        "qwen3.5-397b-a17b": _row(
            4096, 60, 32, 2, 256, 1024, 248320, 262144,
            **_experts(512, 10, 1024, shared_expert_intermediate_size=1024), **_linear(64), **_QWEN3_5,
        ),
        "granite-4.0-h-small": _row(
            4096, 40, 32, 8, 128, 768, 100352, 131072, attn_layer_period=10, attn_layer_offset=5,
            **_experts(72, 10, 768, shared_intermediate_size=1536), **_mamba(128, 64, 1), **_TIED,
        ),
        "nemotron-nano-9b-v2": _row(
            4480, 56, 40, 8, 128, 15680, 131072, 131072, model_type="nemotron_h",
            hybrid_override_pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", **_mamba(128, 80),
        ),
        "nemotron-3-nano-30b-a3b": _row(
            2688, 52, 32, 2, 128, 1856, 131072, 262144, model_type="nemotron_h",
            hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            **_experts(128, 6, 1856, shared_expert_intermediate_size=3712), **_mamba(64, 64),
        ),
        "mixtral-8x7b": _row(4096, 32, 32, 8, 128, 14336, 32000, 32768, **_experts(8, 2, 14336)),
        "mixtral-8x22b": _row(6144, 56, 48, 8, 128, 16384, 32768, 65536, **_experts(8, 2, 16384)),
        "qwen3-30b-a3b": _row(2048, 48, 32, 4, 128, 6144, 151936, 40960, **_experts(128, 8, 768)),
        "qwen3-235b-a22b": _row(4096, 94, 64, 4, 128, 12288, 151936, 40960, **_experts(128, 8, 1536)),
        "gpt-oss-20b": _row(
            2880, 24, 64, 8, 64, 2880, 201088, 131072, **_experts(32, 4, 2880), **_windowed(128, 2), **_MXFP4,
        ),
        "gpt-oss-120b": _row(
            2880, 36, 64, 8, 64, 2880, 201088, 131072, **_experts(128, 4, 2880), **_windowed(128, 2), **_MXFP4,
        ),
        "minimax-m2": _row(3072, 62, 48, 8, 128, 1536, 200064, 196608, **_experts(256, 8, 1536), **_FP8),
        "glm-4.5": _row(
            5120, 92, 96, 8, 128, 12288, 151552, 131072,
            **_experts(160, 8, 1536, n_shared_experts=1, first_k_dense_replace=3),
        ),
        "glm-4.5-air": _row(
            4096, 46, 96, 8, 128, 10944, 151552, 131072,
            **_experts(128, 8, 1408, n_shared_experts=1, first_k_dense_replace=1),
        ),
        "glm-4.6": _row(
            5120, 92, 96, 8, 128, 12288, 151552, 202752,
            **_experts(160, 8, 1536, n_shared_experts=1, first_k_dense_replace=3),
        ),
        # latent attention
        "deepseek-v2": _row(
            5120, 60, 128, 128, 192, 12288, 102400, 163840,
            **_experts(160, 6, 1536, n_shared_experts=2, first_k_dense_replace=1), **_latent(),
        ),
        "deepseek-v3.2": _row(
            7168, 61, 128, 128, 192, 18432, 129280, 163840, index_head_dim=128,
            **_experts(256, 8, 2048, n_shared_experts=1, first_k_dense_replace=3), **_latent(), **_FP8,
        ),
        "kimi-k2-thinking": _row(
            7168, 61, 64, 64, 192, 18432, 163840, 262144,
            **_experts(384, 8, 2048, n_shared_experts=1, first_k_dense_replace=1), **_latent(), **_INT4_EXPERTS,
        ),
        "kimi-k2.5": _row(
            7168, 61, 64, 64, 192, 18432, 163840, 262144,
            **_experts(384, 8, 2048, n_shared_experts=1, first_k_dense_replace=1), **_latent(), **_INT4_EXPERTS,
            **_SIGLIP,
        ),
        "glm-5": _row(
            6144, 78, 64, 64, 256, 12288, 154880, 202752, index_head_dim=128,
            **_experts(256, 8, 2048, n_shared_experts=1, first_k_dense_replace=3),
            **{**_latent(2048, 256), "qk_nope_head_dim": 192},
        ),
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
        # encoders
        "bert-base": _row(768, 12, 12, 12, 64, 3072, 30522, 512, model_type="bert"),
        "bert-large": _row(1024, 24, 16, 16, 64, 4096, 30522, 512, model_type="bert"),
        "minilm-l6": _row(384, 6, 12, 12, 32, 1536, 30522, 512, model_type="bert"),
        "xlm-roberta-base": _row(768, 12, 12, 12, 64, 3072, 250002, 514, model_type="xlm-roberta"),
        "xlm-roberta-large": _row(1024, 24, 16, 16, 64, 4096, 250002, 8194, model_type="xlm-roberta"),
        "modernbert-base": _row(768, 22, 12, 12, 64, 1152, 50368, 8192, model_type="modernbert"),
    }
)  # fmt: skip
