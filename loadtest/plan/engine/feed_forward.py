"""Feed-forward layers of a model: dense ones, and mixtures of experts with shared ones."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.plan.engine.attention import blocks_of, pattern_of
from loadtest.plan.engine.fields import Fields

_PLAIN = {
    "gpt2", "opt", "falcon", "phi", "starcoder2", "gpt_neox", "gptj", "bloom", "mpt", "nemotron", "nemotron_h", "bert",
    "roberta", "xlm-roberta", "distilbert", "electra", "mpnet", "gpt_bigcode", "codegen", "camembert", "deberta-v2",
    "xlm-roberta-xl", "ernie", "albert", "layoutlm", "apertus", "arcee", "jais2", "nanochat", "xlnet", "xmod",
}  # fmt: skip
"""Families whose feed-forward part has two matrices. The others have a gate as a third."""

_MULTIPLE, _MOST_FACTOR = 256, 1000.0


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A mixture of experts."""

    total: int
    active: int
    """Active experts per token, without shared experts."""
    parameters: int
    """Parameters of all routed experts in all layers."""
    layers: int = 0
    """Layers with experts."""
    width: int = 0
    """Width of one expert."""


@dataclass(frozen=True, slots=True)
class FeedForward:
    """All feed-forward layers."""

    experts: ExpertShape | None
    parameters: int
    widest: int
    """Widest activation of a token."""
    inner: tuple[int, ...] = ()
    """Widths of dense parts and shared experts, which ranks split."""


def feed_forward_of(fields: Fields, layers: int) -> FeedForward:
    """Read the feed-forward layers.

    Raises:
        SettingsError: a field is missing or wrong.
    """
    hidden = fields.whole("hidden_size")
    if blocks := blocks_of(fields):
        widths = [_width(feed, hidden) for _, feed in blocks]
        return FeedForward(None, 3 * hidden * sum(widths), max(widths), tuple(sorted({*widths} - {0})))
    inner = fields.section("ffn_config")
    if inner:
        fields = Fields(
            fields.name, {"hidden_size": hidden, "intermediate_size": inner.get("ffn_hidden_size"), **inner}
        )
    matrices = 2 if fields.text("model_type") in _PLAIN else 3
    scout = fields.text("model_type").startswith("llama4")
    dense = fields.any_of("intermediate_size_mlp") if scout else 0
    dense = dense or fields.whole("intermediate_size", 4 * hidden)
    if fields.text("model_type") == "qwen":
        # The first Qwen's files give the width of gate and values together.
        dense //= 2
    if fields.get("block_auto_adjust_ff_dim"):
        dense = _adjusted(fields, dense)
    total = _total(fields)
    pattern = pattern_of(fields)
    if not total or (pattern and "E" not in pattern):
        plain = pattern.count("-") if pattern else layers
        if fields.get("use_double_wide_mlp"):
            # Layers without a cache of their own have parts of twice the width.
            plain += fields.whole_or_zero("num_kv_shared_layers")
        return FeedForward(None, plain * matrices * hidden * dense, dense, (dense,))
    active = _active(fields, total)
    if active > total:
        raise fields.wrong("num_experts_per_tok", f"must be at most the number of experts, {total}", active)
    width = fields.whole("moe_intermediate_size", fields.whole("intermediate_size", dense) if scout else dense)
    sparse = _sparse(fields, layers)
    shared = fields.whole_or_zero("shared_expert_intermediate_size")
    shared = shared or fields.whole_or_zero("n_shared_experts") * width or (width if scout else 0)
    if fields.get("residual_moe") or fields.get("enable_moe_block"):
        # Grok-2 and Gemma 4 have a dense part beside the experts of each layer.
        shared += dense
    routed = sparse * total * matrices * hidden * width
    plain = pattern.count("-") if pattern else layers if fields.get("zero_expert_num") else layers - sparse
    rest = sparse * (matrices * hidden * shared + hidden * total) + plain * matrices * hidden * dense
    widest = max(dense if plain else 0, active * width + shared)
    split = tuple(each for each, there in ((dense, plain), (shared, shared)) if there)
    return FeedForward(ExpertShape(total, active, routed, sparse, width), routed + rest, widest, split)


def _adjusted(fields: Fields, dense: int) -> int:
    """Return the width that LFM2 makes of the one in its file: two thirds, as there is a gate, and whole multiples."""
    factor, multiple = fields.get("block_ffn_dim_multiplier"), fields.whole("block_multiple_of", _MULTIPLE)
    if factor is None:
        factor = 1.0
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < _MOST_FACTOR:
        raise fields.wrong("block_ffn_dim_multiplier", "must be a number above 0", factor)
    return -(-int(factor * int(2 * dense / 3)) // multiple) * multiple


def _width(feed: Fields, hidden: int) -> int:
    """Return the width of one layer of a model whose layers differ, 0 where it has no feed-forward part."""
    if feed.get("no_op"):
        return 0
    if feed.get("replace_with_linear"):
        # One square matrix; three of this width are as large.
        return -(-hidden // 3)
    factor = feed.get("ffn_mult")
    if factor is None:
        return feed.whole("intermediate_size")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < _MOST_FACTOR:
        raise feed.wrong("ffn_mult", "must be a number above 0", factor)
    # vLLM's rule for this family: two thirds, as there is a gate, and whole multiples.
    return -(-int(2 * factor * hidden / 3) // _MULTIPLE) * _MULTIPLE


def _total(fields: Fields) -> int:
    for field in ("n_routed_experts", "num_local_experts", "num_experts"):
        value = fields.get(field)
        if isinstance(value, list) and value and all(isinstance(each, int) for each in value):
            return int(max(value))
        if value:
            return fields.whole(field)
    return 0


def _active(fields: Fields, total: int) -> int:
    """Return the experts that compute a token. Of those that are chosen some do nothing in LongCat-Flash."""
    chosen = fields.whole("num_experts_per_tok")
    idle = fields.whole_or_zero("zero_expert_num")
    return max(1, round(chosen * total / (total + idle))) if idle else chosen


def _sparse(fields: Fields, layers: int) -> int:
    """Return the number of layers with experts."""
    pattern = pattern_of(fields)
    if pattern:
        return pattern.count("E")
    if fields.get("zero_expert_num"):
        # One of the two that each layer of LongCat-Flash counts as.
        return layers // 2
    listed = fields.get("moe_layers")
    if isinstance(listed, list):
        return len(listed)
    kinds = fields.items("mlp_layer_types")
    if kinds:
        return sum(each == "sparse" for each in kinds)
    named = fields.get("moe_layers_enum")
    if isinstance(named, str):
        return len([each for each in named.split(",") if each.strip()])
    often = fields.get("moe_layer_freq")
    if isinstance(often, list):
        return sum(bool(each) for each in often)
    if (period := fields.any_of("expert_layer_period")) and not fields.items("layers_block_type"):
        offset = fields.get("expert_layer_offset") or 0
        return sum(at % period == offset for at in range(layers))
    first = min(layers, fields.any_of("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"))
    step = (
        fields.any_of("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", "moe_layer_freq") or 1
    )
    plain = {at for at in fields.items("mlp_only_layers") if isinstance(at, int) and 0 <= at < layers}
    return max(0, (layers - first) // step - len(plain))
