"""Properties of a model's architecture that memory and speed depend on, read from its config.json."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import SettingsError, plain_reason
from loadtest.plan.engine.attention import (
    LatentAttention,
    Recurrent,
    SlidingWindow,
    full_heads_of,
    latent_of,
    layers_of,
    parameters_of,
    pattern_of,
)
from loadtest.plan.engine.feed_forward import ExpertShape, feed_forward_of
from loadtest.plan.engine.fields import Fields
from loadtest.plan.engine.quantization import native_of

_ENCODERS = {
    "bert", "roberta", "xlm-roberta", "distilbert", "electra", "mpnet", "modernbert", "nomic_bert", "deberta-v2",
    "camembert", "xlm-roberta-xl", "albert", "ernie", "new", "gte",
}  # fmt: skip
"""Families that read a text at once and generate none."""
TIED = {
    "gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "cohere", "cohere2",
    "cohere2_moe", "falcon", "falcon_mamba", "mamba", "gpt2", "gpt_bigcode", "gpt_neo", "bloom", "mpt", "opt",
    "starcoder2", "smollm3", "lfm2", "lfm2_moe", "ernie4_5", "ernie4_5_moe", "minicpm3", "jetmoe", "recurrent_gemma",
}  # fmt: skip
"""Families whose output layer is their input embedding where a file does not say: files leave out what is a default."""
BFLOAT16_ONLY = {"gemma2", "gemma3", "gemma3_text", "glm4"}
"""Families whose activations overflow in float16."""
_TOWERS = ("vision_config", "audio_config", "vision_tower_config")


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
    """Parameters of input embeddings that a token looks up and does not multiply with, small ones of each layer too.
    One that is also the output layer is none of them."""
    context: int
    """Longest prompt and output together, tokens."""
    untold_context: int = 0
    """Context that engines take where nobody tells them one, if it is shorter; else 0."""
    latent: LatentAttention | None = None
    experts: ExpertShape | None = None
    native: str = "bf16"
    """Precision of the published weights."""
    heads: int = 0
    """Attention heads; 0 where the number is not known."""
    window: SlidingWindow | None = None
    recurrent: Recurrent | None = None
    attending: int = 0
    """Layers that attend to the whole context."""
    borrowing: tuple[int, int] = (0, 0)
    """Of the attending layers and of those with a window the ones that keep nothing: they read what an earlier one
    keeps."""
    experts_only: bool = False
    """Whether published weights are in 16 bits but for routed experts."""
    wide: int = 0
    """Parameters of attention that published weights leave in 16 bits, in a model without experts."""
    block: int = 0
    """Side of the blocks of published weights that share a scale; 0 without such blocks."""
    inner: tuple[int, ...] = ()
    """Widths that ranks split beside those of routed experts: of dense feed-forward parts and shared experts."""
    tower: int = 0
    """Parameters of encoders of images and sound. Engines keep them in 16 bits."""
    encoder: bool = False
    """Whether the model reads texts and generates none. It has no KV cache."""
    vocabulary: int = 0
    """Parameters of the input embedding and the output layer."""
    float16: bool = True
    """Whether engines run it in float16, where an accelerator has no bfloat16."""

    @property
    def active_parameters(self) -> int:
        """Parameters that one token is multiplied with."""
        routed = self.experts.parameters if self.experts else 0
        return self.parameters - self.embedding - routed + self.active_expert_parameters

    @property
    def active_expert_parameters(self) -> int:
        """Part of `active_parameters` that belongs to routed experts."""
        return self.experts.parameters * self.experts.active // self.experts.total if self.experts else 0

    @property
    def layer_kv_values(self) -> int:
        """Values that one attending layer keeps per token."""
        if self.latent is not None:
            return self.latent.rank + self.latent.rope_dim + self.latent.index_dim // 2
        return 2 * self.kv_heads * self.head_dim

    @property
    def window_kv_values(self) -> int:
        """Values that a layer with a window keeps per token."""
        return (self.window.values if self.window else 0) or self.layer_kv_values

    def kv_bytes(self, element_bytes: float = 2.0, length: float | None = None) -> float:
        """Return the bytes of KV cache per token, over all layers and heads.

        Args:
            element_bytes: of each value.
            length: tokens of a sequence. Layers with a window keep no more than that. None counts them in full.
        """
        if self.encoder:
            return 0.0
        full, windowed = self.borrowing
        values = float((self.attending - full) * self.layer_kv_values)
        if self.window is not None:
            part = 1.0 if length is None else min(1.0, self.window.tokens / max(1.0, length))
            values += (self.window.layers - windowed) * part * self.window_kv_values
        return values * element_bytes

    def kv_bytes_per_rank(self, tensor_parallel: int, element_bytes: float = 2.0, length: float | None = None) -> float:
        """Return a token's bytes on each GPU. Latent vectors are on all GPUs, heads are split as far as they go."""
        if self.latent is not None:
            return self.kv_bytes(element_bytes, length)
        heads = -(-self.kv_heads // tensor_parallel)
        return self.kv_bytes(element_bytes, length) * heads / self.kv_heads


def read_config(path: Path) -> ModelShape:
    """Read a model's folder or its config.json.

    Raises:
        SettingsError: the file is missing, is no JSON, or lacks a field.
    """
    file = path / "config.json" if path.is_dir() else path
    config = _object(file)
    beside = file.parent / "hf_quant_config.json"
    more = _object(beside) if beside.exists() else None
    # "." and a config.json without a folder have no name of their own.
    return shape_of(Path(os.path.abspath(file)).parent.name, config, more)


def _object(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"model: {file} cannot be read: {plain_reason(error)}") from error
    if not isinstance(config, dict):
        raise SettingsError(f"model: {file} must hold one JSON object")
    return config


def shape_of(name: str, config: Mapping[str, Any], quantization: Mapping[str, Any] | None = None) -> ModelShape:
    """Read a configuration in Hugging Face's terms.

    Args:
        name: of the model.
        config: its config.json.
        quantization: its hf_quant_config.json, if there is one.

    Raises:
        SettingsError: a field is missing or not a positive whole number, or a kind of layer or quantisation is unknown.
    """
    whole = Fields(name, config)
    fields = whole.of_text()
    hidden, layers = fields.whole("hidden_size"), _layer_count(fields)
    recurrent_only = fields.text("model_type") in ("mamba", "mamba2", "falcon_mamba")
    heads = fields.whole("num_attention_heads", 1 if recurrent_only else None)
    kv_heads, head_dim = full_heads_of(fields)
    vocabulary, (context, untold) = fields.whole("vocab_size"), _contexts(fields)
    encoder = _reads_only(fields)
    embedding = vocabulary * hidden
    matrices = 1 if encoder or _tied(fields) else 2
    latent, kinds = latent_of(fields), layers_of(fields, layers, context)
    feed = feed_forward_of(fields, layers)
    windowed = kinds.window.layers if kinds.window else 0
    recurrent = kinds.recurrent.layers if kinds.recurrent else 0
    attention = windowed * parameters_of(fields, latent) if windowed else 0
    attention += 0 if recurrent_only else kinds.full * parameters_of(fields, latent, kv_heads, head_dim)
    looked_up, projected = _vectors_per_layer(fields, layers, hidden, vocabulary)
    parts = (embedding * matrices, looked_up, projected, attention, recurrent * kinds.recurrent_parameters)
    parameters = sum(parts) + layers * 2 * hidden + (0 if recurrent_only else feed.parameters)
    native = native_of(fields, quantization)
    return ModelShape(
        name=name,
        parameters=parameters,
        layers=layers,
        hidden=hidden,
        intermediate=feed.widest,
        kv_heads=kv_heads,
        head_dim=head_dim,
        embedding=looked_up + (matrices - 1) * embedding,
        context=context,
        untold_context=untold,
        latent=latent,
        experts=feed.experts,
        native=native.precision,
        heads=heads,
        window=kinds.window,
        recurrent=kinds.recurrent,
        attending=kinds.full,
        borrowing=kinds.borrowing,
        experts_only=native.experts_only and feed.experts is not None,
        wide=attention if native.experts_only and feed.experts is None else 0,
        block=native.block,
        inner=feed.inner,
        tower=sum(_tower(whole, each) for each in _TOWERS),
        encoder=encoder,
        vocabulary=looked_up + embedding * matrices,
        float16=fields.text("model_type") not in BFLOAT16_ONLY,
    )


def _contexts(fields: Fields) -> tuple[int, int]:
    """Return the longest context, and the one that engines take where nobody tells them one; 0 where it is the same.

    Positions that are stretched by a factor reach as many times as far as the field says, if it is not of YaRN's kind,
    where the field counts them stretched. Two sets of factors (LongRoPE) begin with the shorter one.
    """
    said = fields.whole("max_position_embeddings", 131_072)
    rope = Fields(f"{fields.name}: rope_scaling", fields.section("rope_parameters") or fields.section("rope_scaling"))
    kind, factor = rope.text("rope_type") or rope.text("type"), rope.get("factor")
    if kind in ("linear", "dynamic") and factor is not None and not fields.text("model_type").startswith("gemma3"):
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < _MOST_STRETCH:
            raise rope.wrong("factor", f"must be a number from 1 to {_MOST_STRETCH:g}", factor)
        return int(factor * said), 0
    if kind not in ("longrope", "su"):
        return said, 0
    first = fields.any_of("original_max_position_embeddings") or rope.any_of("original_max_position_embeddings")
    return said, first if first < said else 0


_MOST_STRETCH = 10_000.0


def _tied(fields: Fields) -> bool:
    """Return whether the input embedding is also the output layer."""
    said = fields.get("tie_word_embeddings")
    return fields.text("model_type") in TIED if said is None else bool(said)


def _vectors_per_layer(fields: Fields, layers: int, hidden: int, vocabulary: int) -> tuple[int, int]:
    """Return the parameters of small vectors that some models look up for each layer, and of what brings these to the
    hidden size.
    """
    size = fields.whole_or_zero("hidden_size_per_layer_input")
    names = fields.whole_or_zero("vocab_size_per_layer_input") or vocabulary
    return layers * size * names, layers * 3 * hidden * size


def _layer_count(fields: Fields) -> int:
    count = len(pattern_of(fields)) or fields.whole("num_hidden_layers")
    # Each layer of LongCat-Flash is two, with attention and a dense part each; one has experts beside them.
    return 2 * count if fields.get("zero_expert_num") else count


def _reads_only(fields: Fields) -> bool:
    """Return whether a model reads texts and generates none: by its family, or because it was trained to fill gaps."""
    named = fields.items("architectures")
    return fields.text("model_type") in _ENCODERS or any(str(each).endswith("ForMaskedLM") for each in named)


def _tower(whole: Fields, section: str) -> int:
    """Return the parameters of an encoder of images or sound, 0 where there is none."""
    inner = whole.section("thinker_config")
    config = (Fields(whole.name, inner) if inner else whole).section(section)
    if not config:
        return 0
    fields = Fields(f"{whole.name}: {section}", config)
    hidden = fields.any_of("hidden_size", "vt_hidden_size", "embed_dim", "width", "d_model")
    layers = fields.any_of(
        "num_hidden_layers", "vt_num_hidden_layers", "depth", "layers", "encoder_layers", "num_blocks"
    )
    if not hidden or not layers:
        raise fields.wrong("hidden_size", "and num_hidden_layers must be there", config.get("hidden_size"))
    if fields.any_of("embed_dim") and fields.any_of("depth"):
        hidden = fields.any_of("embed_dim")
    width = fields.any_of("intermediate_size", "vt_intermediate_size", "encoder_ffn_dim") or 4 * hidden
    return layers * (4 * hidden * hidden + 3 * hidden * width)
