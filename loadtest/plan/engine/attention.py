"""Kinds of a model's layers: full attention, attention to a window, and layers with a state of fixed size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.plan.engine.fields import Fields

_FULL, _WINDOWED, _RECURRENT, _NONE = "full", "windowed", "recurrent", "none"
_KINDS = {
    _FULL: ("full_attention", "attention", "global", "global_attention", "full", "hybrid", "indexed_attention"),
    _WINDOWED: ("sliding_attention", "chunked_attention", "sliding_window", "local", "local_attention", "swa",
                "hybrid_sliding"),
    _RECURRENT: (
        "linear_attention", "mamba", "mamba2", "recurrent", "lightning_attention", "conv", "kda", "ssm", "linear",
    ),
    _NONE: ("mlp", "moe", "identity"),
}  # fmt: skip
_PATTERN = {"*": _FULL, "M": _RECURRENT, "-": _NONE, "E": _NONE}
_STATES = (
    "mamba_d_state", "mamba_d_ssm", "mamba_state_dim", "ssm_state_size", "state_size", "linear_num_value_heads",
    "conv_L_cache", "layer_group_size", "lru_width",
)  # fmt: skip
"""Fields that only models have in which some layers keep a state of fixed size."""
_STATE_BYTES = 4
"""States are kept in 32 bits."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one compressed vector per token and layer, whatever the number of heads."""

    rank: int
    """Dimension of the compressed keys and values."""
    rope_dim: int
    plain_dim: int = 128
    """Dimension of a head's query beside the rotated part."""
    value_dim: int = 128
    index_dim: int = 0
    """Dimension of the keys by which sparse attention chooses tokens; 0 without it."""


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Layers that attend to the last tokens only."""

    layers: int
    tokens: int
    values: int = 0
    """Values that one of these layers keeps per token; 0 for as many as one that attends to all."""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Layers whose state does not grow with the context: linear attention, state spaces, convolutions."""

    layers: int
    state_bytes: float
    """Bytes per sequence, over all of these layers."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Kinds of the layers."""

    full: int
    window: SlidingWindow | None = None
    recurrent: Recurrent | None = None
    recurrent_parameters: int = 0
    """Parameters of one recurrent layer."""
    borrowing: tuple[int, int] = (0, 0)
    """Of the full and of the windowed layers those that read the cache of an earlier layer and keep none."""


_NOT_UNDERSTOOD = {
    "num_mem_blocks": "weights that layers share",
    "num_hidden_groups": "weights that layers share",
    "H_cycles": "layers that run more than once",
    "ngram_vocab_size_base": "embeddings of n-grams",
    "ngram_vocab_size_ratio": "embeddings of n-grams",
}
"""Fields that only models have whose size or work is another than their layers tell."""
_LETTERS = {_FULL: "*", _RECURRENT: "M", "mlp": "-", "moe": "E"}


def pattern_of(fields: Fields) -> str:
    """Return the layers of a model whose feed-forward parts are layers of their own, one letter each; empty for others.

    Raises:
        SettingsError: a field names an unknown kind.
    """
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern
    named = [str(each).lower() for each in fields.items("layers_block_type")]
    if not {"mlp", "moe"} & set(named):
        return ""
    letters = [_LETTERS[each if each in _LETTERS else _kind(fields, "layers_block_type", each)] for each in named]
    return "".join(letters)


def layers_of(fields: Fields, layers: int, context: int) -> Layers:
    """Return the kinds of a model's layers.

    Raises:
        SettingsError: a field names an unknown kind, or the size of a state is missing.
    """
    for field, what in _NOT_UNDERSTOOD.items():
        if value := fields.get(field):
            raise fields.wrong(field, f"must not be there: {what} are not understood", value)
    kinds = _kinds(fields, layers)
    window = None
    if kinds[_WINDOWED]:
        tokens = fields.any_of("sliding_window", "sliding_window_size", "attention_chunk_size", "local_attention")
        if not tokens:
            raise fields.wrong("sliding_window", "must be there, because some layers attend to a window", None)
        window = SlidingWindow(kinds[_WINDOWED], tokens, _window_values(fields)) if tokens < context else None
        if window is None:
            kinds[_FULL] += kinds[_WINDOWED]
    borrowing = _borrowing(fields, layers, windowed=window is not None)
    if not kinds[_RECURRENT]:
        return Layers(kinds[_FULL], window, borrowing=borrowing)
    state, parameters = _state(fields)
    recurrent = Recurrent(kinds[_RECURRENT], float(kinds[_RECURRENT] * state * _STATE_BYTES))
    return Layers(kinds[_FULL], window, recurrent, parameters, borrowing)


def _borrowing(fields: Fields, layers: int, *, windowed: bool) -> tuple[int, int]:
    """Return the last layers that read the cache of an earlier one: full ones, and those with a window."""
    number = fields.whole_or_zero("num_kv_shared_layers")
    if not number:
        return 0, 0
    if number >= layers:
        raise fields.wrong("num_kv_shared_layers", f"must be below the number of layers, {layers}", number)
    last = _kinds(fields, layers)
    last.subtract(_kinds(fields, layers - number))
    return (last[_FULL], last[_WINDOWED]) if windowed else (last[_FULL] + last[_WINDOWED], 0)


def _kinds(fields: Fields, layers: int) -> Counter[str]:
    pattern = pattern_of(fields)
    if pattern:
        unknown = set(pattern) - set(_PATTERN)
        if unknown:
            raise fields.wrong("hybrid_override_pattern", f"must consist of {', '.join(_PATTERN)}", pattern)
        return Counter(_PATTERN[each] for each in pattern)
    if blocks := blocks_of(fields):
        return Counter(_FULL if attends(attention) else _NONE for attention, _ in blocks)
    for field in ("layer_types", "layers_block_type"):
        if named := fields.items(field):
            return Counter(_kind(fields, field, each) for each in named[:layers])
    if flags := fields.items("hybrid_layer_pattern"):
        return Counter(_WINDOWED if each else _FULL for each in flags[:layers])
    if indices := fields.items("attn_layer_indices"):
        full = len(set(indices) & set(range(layers)))
        return Counter({_FULL: full, _RECURRENT: layers - full})
    if numbered := fields.items("attn_type_list"):
        return Counter(_FULL if each else _RECURRENT for each in numbered[:layers])
    linear = fields.section("linear_attn_config")
    if linear:
        full = len(Fields(fields.name, linear).items("full_attn_layers"))
        return Counter({_FULL: full, _RECURRENT: layers - full})
    return _by_rule(fields, layers)


def _kind(fields: Fields, field: str, value: object) -> str:
    for kind, names in _KINDS.items():
        if str(value).lower() in names:
            return kind
    known = ", ".join(each for names in _KINDS.values() for each in names)
    raise fields.wrong(field, f"must be a list of {known}", value)


def _by_rule(fields: Fields, layers: int) -> Counter[str]:
    family = fields.text("model_type")
    if interval := fields.any_of("full_attention_interval"):
        full = layers // interval
        return Counter({_FULL: full, _RECURRENT: layers - full})
    if period := fields.any_of("attn_layer_period"):
        offset = fields.get("attn_layer_offset") or 0
        full = sum(at % period == offset for at in range(layers))
        return Counter({_FULL: full, _RECURRENT: layers - full})
    if family in ("mamba", "mamba2", "falcon_mamba"):
        return Counter({_RECURRENT: layers})
    if family == "falcon_h1":
        # Each layer has both, beside each other.
        return Counter({_FULL: layers, _RECURRENT: layers})
    if family == "bailing_moe_linear" and (group := fields.any_of("layer_group_size")):
        return Counter({_FULL: layers // group, _RECURRENT: layers - layers // group})
    if fields.whole_or_zero("attention_chunk_size"):
        rope = fields.items("no_rope_layers")
        chunked = sum(bool(each) for each in rope) if rope else layers - layers // 4
        return Counter({_FULL: layers - chunked, _WINDOWED: chunked})
    if fields.get("sliding_window") and fields.get("use_sliding_window") is not False:
        usual = {"gemma2": 2, "gpt_oss": 2, "gemma3_text": 6, "gemma3": 6, "cohere2": 4}.get(family, 0)
        every = fields.any_of("sliding_window_pattern", "global_attn_every_n_layers") or usual
        full = layers // every if every else 0
        if fields.get("use_sliding_window"):
            full = min(layers, fields.whole_or_zero("max_window_layers"))
        return Counter({_FULL: full, _WINDOWED: layers - full})
    if every := fields.any_of("global_attn_every_n_layers"):
        full = -(-layers // every)
        return Counter({_FULL: full, _WINDOWED: layers - full})
    for field in _STATES:
        if value := fields.get(field):
            raise fields.wrong(field, "is of layers with a state, and layer_types must say which ones those are", value)
    return Counter({_FULL: layers})


def _state(fields: Fields) -> tuple[int, int]:
    """Return the values in a layer's state and its parameters."""
    hidden = fields.whole("hidden_size")
    linear = fields.section("linear_attn_config")
    if linear:
        inner = Fields(fields.name, linear)
        heads, dim = inner.whole("num_heads"), inner.whole("head_dim")
        return heads * dim * dim, 4 * hidden * heads * dim
    if fields.get("linear_num_heads"):
        heads, dim = fields.whole("linear_num_heads"), fields.whole("linear_head_dim")
        return heads * dim * dim, 4 * hidden * heads * dim
    if fields.get("linear_num_value_heads"):
        heads, values = fields.whole("linear_num_value_heads"), fields.whole("linear_value_head_dim")
        keys = fields.whole("linear_num_key_heads") * fields.whole("linear_key_head_dim")
        width = heads * values
        state = heads * fields.whole("linear_key_head_dim") * values
        return state, hidden * (2 * keys + 2 * width + 2 * heads) + width * hidden
    heads = fields.any_of("mamba_n_heads", "mamba_num_heads")
    if heads:
        width = heads * fields.any_of("mamba_d_head", "mamba_head_dim")
        size = fields.any_of("mamba_d_state", "ssm_state_size")
        groups = fields.any_of("mamba_n_groups", "n_groups") or 1
        if not width or not size:
            raise fields.wrong("mamba_d_state", "and mamba_d_head must be there, or ssm_state_size, for Mamba", None)
        return width * size, hidden * (2 * width + 2 * groups * size + heads) + width * hidden
    size = fields.any_of("mamba_d_state", "state_size")
    if size:
        width = hidden * (fields.any_of("mamba_expand", "expand") or 2)
        rank = (
            fields.any_of("mamba_dt_rank", "time_step_rank")
            if not isinstance(fields.get("mamba_dt_rank") or fields.get("time_step_rank"), str)
            else -(-hidden // 16)
        )
        return width * size, 3 * hidden * width + width * (2 * rank + 2 * size)
    if cached := fields.any_of("conv_L_cache"):
        return hidden * cached, 4 * hidden * hidden
    family = fields.text("model_type")
    if fields.items("attn_type_list") or family.startswith("minimax") or family == "bailing_moe_linear":
        heads = fields.whole("num_attention_heads")
        dim = fields.whole("head_dim", hidden // heads)
        return heads * dim * dim, 5 * hidden * heads * dim
    raise fields.wrong(
        "linear_num_value_heads", "or mamba_n_heads, mamba_d_state or conv_L_cache must say how large a state is", None
    )


def parameters_of(
    fields: Fields, latent: LatentAttention | None, key_heads: int | None = None, dim: int | None = None
) -> int:
    """Return the parameters of one layer's attention.

    Args:
        fields: of the model.
        latent: its latent attention.
        key_heads: heads of keys and values; None for those of the model's fields.
        dim: dimension of a head; None as above.
    """
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    if latent is not None:
        query = heads * (latent.plain_dim + latent.rope_dim)
        rank = fields.whole_or_zero("q_lora_rank")
        queries = hidden * rank + rank * query if rank else hidden * query
        keys = hidden * (latent.rank + latent.rope_dim) + latent.rank * heads * (latent.plain_dim + latent.value_dim)
        return queries + keys + heads * latent.value_dim * hidden
    kv_heads, head_dim = key_heads or kv_heads_of(fields), dim or fields.whole("head_dim", hidden // heads)
    gates = (
        1 if fields.get("attn_output_gate") or fields.text("model_type").startswith(("qwen3_next", "qwen3_5")) else 0
    )
    return (2 + gates) * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim


def kv_heads_of(fields: Fields) -> int:
    """Return a layer's heads of keys and values; as many as heads of queries where no field says another number.

    Raises:
        SettingsError: a field is wrong, or layers that attend have different numbers.
    """
    heads = fields.whole("num_attention_heads", 1)
    if fields.get("multi_query") and not fields.get("new_decoder_architecture"):
        return 1
    inner = Fields(fields.name, fields.section("attn_config"))
    if inner.get("kv_n_heads"):
        return inner.whole("kv_n_heads")
    field = "num_key_value_heads_per_layer"
    numbers = [each for each in fields.items(field) if each]
    if blocks := blocks_of(fields):
        field = "block_configs: n_heads_in_group"
        groups = [each.whole("n_heads_in_group") for each, _ in blocks if attends(each)]
        numbers = [heads // each for each in groups]
    if not numbers:
        return fields.whole("num_key_value_heads", heads)
    if len(set(numbers)) > 1 or not isinstance(numbers[0], int) or numbers[0] < 1:
        raise fields.wrong(field, "must be the same number in all layers", numbers)
    return numbers[0]


def full_heads_of(fields: Fields) -> tuple[int, int]:
    """Return heads of keys and values, and a head's dimension, of layers that attend to the whole context. Some models
    have wider ones there than in layers with a window.

    Raises:
        SettingsError: a field is wrong, or such layers differ.
    """
    heads, hidden = fields.whole("num_attention_heads", 1), fields.whole("hidden_size")
    kv_heads = fields.any_of("num_global_key_value_heads") or kv_heads_of(fields)
    dim = fields.any_of("global_head_dim") or fields.whole("head_dim", hidden // heads)
    others = fields.section("per_layer_config")
    if not others:
        return kv_heads, dim
    known = {"head_dim": dim, "num_key_value_heads": kv_heads}
    first = next(iter(others.values()))
    alike = isinstance(first, Mapping) and set(first) <= set(known) and all(each == first for each in others.values())
    if not alike or len(others) != _kinds(fields, fields.whole("num_hidden_layers"))[_FULL]:
        must = f"must have {' or '.join(known)} of all layers that attend to the whole context, and of no others"
        raise fields.wrong("per_layer_config", must, others)
    own = Fields(f"{fields.name}: per_layer_config", {**known, **first})
    return own.whole("num_key_value_heads"), own.whole("head_dim")


def _window_values(fields: Fields) -> int:
    """Return the values that a layer with a window keeps per token, where others keep another number; else 0."""
    heads = fields.whole("num_attention_heads", 1)
    dim = fields.any_of("swa_head_dim") or fields.whole("head_dim", fields.whole("hidden_size") // heads)
    kv_heads = fields.any_of("swa_num_key_value_heads") or kv_heads_of(fields)
    return 0 if (kv_heads, dim) == full_heads_of(fields) else 2 * kv_heads * dim


def blocks_of(fields: Fields) -> list[tuple[Fields, Fields]]:
    """Return attention and feed-forward part of each layer of a model whose layers differ; empty for others.

    Raises:
        SettingsError: the field is no list of objects that have both.
    """
    found = []
    for number, block in enumerate(fields.items("block_configs")):
        parts = [block.get(part) if isinstance(block, Mapping) else None for part in ("attention", "ffn")]
        if not all(isinstance(part, Mapping) for part in parts):
            raise fields.wrong(f"block_configs[{number}]", "must have the objects attention and ffn", block)
        attention, feed = (
            Fields(f"{fields.name}: block_configs[{number}]", part) for part in parts if part is not None
        )
        found.append((attention, feed))
    return found


def attends(attention: Fields) -> bool:
    """Return whether a layer of a model whose layers differ has attention. Others leave it out, or have one matrix in
    its place.
    """
    return not attention.get("no_op") and not attention.get("replace_with_linear")


def latent_of(fields: Fields) -> LatentAttention | None:
    """Return a model's latent attention; None for another kind."""
    if not fields.get("kv_lora_rank"):
        return None
    return LatentAttention(
        fields.whole("kv_lora_rank"),
        fields.whole("qk_rope_head_dim"),
        fields.whole("qk_nope_head_dim"),
        fields.whole("v_head_dim"),
        fields.whole_or_zero("index_head_dim"),
    )
