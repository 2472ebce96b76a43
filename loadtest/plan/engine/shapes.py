"""Properties of a model's architecture that memory and speed depend on, read from its config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import SettingsError, plain_reason


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one compressed vector per token and layer, whatever the number of heads."""

    rank: int
    """Dimension of the compressed keys and values."""
    rope_dim: int


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A mixture of experts."""

    total: int
    active: int
    """Active experts per token, without shared experts."""
    parameters: int
    """Parameters of all routed experts in all layers."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """An architecture."""

    name: str
    parameters: int
    layers: int
    hidden: int
    intermediate: int
    """Widest activation of the feed-forward part, per token."""
    kv_heads: int
    head_dim: int
    embedding: int
    """Parameters of the input embedding, which a token looks up and does not multiply with. 0 where it is also the
    output layer."""
    context: int
    """Longest prompt and output together, tokens."""
    latent: LatentAttention | None = None
    experts: ExpertShape | None = None
    native: str = "bf16"
    """Precision of the published weights."""
    heads: int = 0
    """Attention heads; 0 where the number is not known."""

    @property
    def active_parameters(self) -> int:
        """Parameters that one token is multiplied with."""
        routed = self.experts.parameters if self.experts else 0
        return self.parameters - self.embedding - routed + self.active_expert_parameters

    @property
    def active_expert_parameters(self) -> int:
        """Part of `active_parameters` that belongs to routed experts."""
        return self.experts.parameters * self.experts.active // self.experts.total if self.experts else 0

    def kv_bytes(self, element_bytes: float = 2.0) -> float:
        """Return the bytes of KV cache per token, over all layers and heads. Windowed layers count in full, so the
        result is an upper bound for them.
        """
        if self.latent is not None:
            return self.layers * (self.latent.rank + self.latent.rope_dim) * element_bytes
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes

    def kv_bytes_per_rank(self, tensor_parallel: int, element_bytes: float = 2.0) -> float:
        """Return a token's bytes on each GPU. Latent vectors are on all GPUs, heads are split as far as they go."""
        if self.latent is not None:
            return self.kv_bytes(element_bytes)
        heads = -(-self.kv_heads // tensor_parallel)
        return self.kv_bytes(element_bytes) * heads / self.kv_heads


def read_config(path: Path) -> ModelShape:
    """Read a model's folder or its config.json.

    Raises:
        SettingsError: the file is missing, is no JSON, or lacks a field.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"model: {file} cannot be read: {plain_reason(error)}") from error
    if not isinstance(config, dict):
        raise SettingsError(f"model: {file} must hold one JSON object")
    return shape_of(path.name if path.is_dir() else file.parent.name, config)


def shape_of(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Read a configuration in Hugging Face's terms.

    Raises:
        SettingsError: a field is missing or not a positive whole number.
    """
    config = _section(name, config, "text_config") or config
    hidden, layers = _whole(name, config, "hidden_size"), _whole(name, config, "num_hidden_layers")
    heads = _whole(name, config, "num_attention_heads")
    kv_heads = _whole(name, config, "num_key_value_heads", heads)
    head_dim = _whole(name, config, "head_dim", hidden // heads)
    vocabulary = _whole(name, config, "vocab_size")
    tied = bool(config.get("tie_word_embeddings", False))
    embedding = vocabulary * hidden
    latent = None
    if config.get("kv_lora_rank"):
        latent = LatentAttention(_whole(name, config, "kv_lora_rank"), _whole(name, config, "qk_rope_head_dim"))
        attention = _latent_parameters(name, config, hidden, heads, latent)
    else:
        attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    experts, feed_forward, width = _feed_forward(name, config, hidden, layers)
    parameters = embedding * (1 if tied else 2) + layers * (attention + 2 * hidden) + feed_forward
    return ModelShape(
        name=name,
        parameters=parameters,
        layers=layers,
        hidden=hidden,
        intermediate=width,
        kv_heads=kv_heads,
        head_dim=head_dim,
        embedding=0 if tied else embedding,
        context=_whole(name, config, "max_position_embeddings", 131_072),
        latent=latent,
        experts=experts,
        native=_native(name, config),
        heads=heads,
    )


def _latent_parameters(name: str, config: Mapping[str, Any], hidden: int, heads: int, latent: LatentAttention) -> int:
    plain, value = _whole(name, config, "qk_nope_head_dim"), _whole(name, config, "v_head_dim")
    query = heads * (plain + latent.rope_dim)
    rank = _whole_or_zero(name, config, "q_lora_rank")
    queries = hidden * rank + rank * query if rank else hidden * query
    keys = hidden * (latent.rank + latent.rope_dim) + latent.rank * heads * (plain + value)
    return queries + keys + heads * value * hidden


def _feed_forward(
    name: str, config: Mapping[str, Any], hidden: int, layers: int
) -> tuple[ExpertShape | None, int, int]:
    """Return the experts, the parameters of all feed-forward layers, and the widest activation of a token."""
    totals = (_whole_or_zero(name, config, key) for key in ("n_routed_experts", "num_local_experts", "num_experts"))
    total = next(filter(None, totals), 0)
    dense = _whole(name, config, "intermediate_size", 4 * hidden)
    if not total:
        return None, layers * 3 * hidden * dense, dense
    active = _whole(name, config, "num_experts_per_tok")
    width = _whole(name, config, "moe_intermediate_size", dense)
    plain_layers = min(layers, _whole_or_zero(name, config, "first_k_dense_replace"))
    steps = (_whole_or_zero(name, config, key) for key in ("decoder_sparse_step", "interleave_moe_layer_step"))
    step = next(filter(None, steps), 1)
    sparse = (layers - plain_layers) // step
    shared = _whole_or_zero(name, config, "n_shared_experts") * width
    shared = _whole_or_zero(name, config, "shared_expert_intermediate_size") or shared
    routed = sparse * total * 3 * hidden * width
    rest = sparse * (3 * hidden * shared + hidden * total) + (layers - sparse) * 3 * hidden * dense
    widest = max(dense if plain_layers or step > 1 else 0, active * width + shared)
    return ExpertShape(total, active, routed), routed + rest, widest


def _native(name: str, config: Mapping[str, Any]) -> str:
    method = str(_section(name, config, "quantization_config").get("quant_method", ""))
    known = {"mxfp4": "mxfp4", "fp8": "fp8", "awq": "int4", "gptq": "int4", "modelopt": "fp8"}
    return known.get(method, "bf16")


def _section(name: str, config: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return an object within the configuration, an empty one where it is missing."""
    value = config.get(field) or {}
    if not isinstance(value, Mapping):
        raise SettingsError(f"model {name}: config.json: {field} must be one JSON object, got {value!r}")
    return value


def _whole_or_zero(name: str, config: Mapping[str, Any], field: str) -> int:
    """Return a whole number, or 0 where there is none. Configurations write "none" in several ways."""
    return _whole(name, config, field) if config.get(field) else 0


def _whole(name: str, config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingsError(f"model {name}: config.json: {field} must be a whole number of at least 1, got {value!r}")
    return value
