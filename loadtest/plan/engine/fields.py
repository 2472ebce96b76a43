"""Fields of a config.json, in the terms of the many families of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.errors import SettingsError

_OTHER_NAMES = {
    "hidden_size": ("n_embd", "d_model", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups"),
    "head_dim": ("kv_channels", "attention_head_dim"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim", "decoder_ffn_dim",
                          "ff_intermediate_size"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "max_sequence_length", "max_seq_len", "seq_length", "model_max_length"),
    "num_experts_per_tok": ("moe_topk", "moe_top_k", "moe_k", "num_experts_per_token", "top_k_experts"),
    "num_experts": ("moe_num_experts", "num_moe_experts"),
    "moe_intermediate_size": ("expert_ffn_hidden_size", "moe_ffn_hidden_size"),
    "n_shared_experts": ("num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "shared_expert_intermediate_size": ("shared_intermediate_size", "share_expert_dim",
                                        "moe_shared_expert_intermediate_size"),
}  # fmt: skip
"""Names that some families give a field, where they do not use the usual one."""
_TEXT = ("text_config", "llm_config", "language_config", "language_model_config")


class Fields:
    """One configuration, read with a message that names the field.

    Args:
        name: of the model.
        config: the object.
    """

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self.name = name
        self._config = config

    def of_text(self) -> Fields:
        """Return the part of a model of several kinds of input that makes text; itself where there is none.

        Raises:
            SettingsError: the part is no object.
        """
        inner = self.section("thinker_config")
        around = Fields(self.name, inner) if inner else self
        for field in _TEXT:
            part = around.section(field)
            if part:
                # Some fields are said once for all parts.
                outer = ("quantization_config", "tie_word_embeddings", "vocab_size")
                shared = {key: value for key in outer if (value := around.get(key)) is not None}
                return Fields(self.name, {**shared, **part})
        return around

    def get(self, field: str) -> Any:
        """Return a value as it is; None where it is missing."""
        value = self._config.get(field)
        if value is not None:
            return value
        for other in _OTHER_NAMES.get(field, ()):
            value = self._config.get(other)
            if value is not None:
                return value
        return None

    def text(self, field: str) -> str:
        """Return a value in lower case; empty where it is missing."""
        return str(self.get(field) or "").lower()

    def section(self, field: str) -> Mapping[str, Any]:
        """Return an object within the configuration, an empty one where it is missing.

        Raises:
            SettingsError: the value is no object.
        """
        value = self._config.get(field) or {}
        if not isinstance(value, Mapping):
            raise self.wrong(field, "must be one JSON object", value)
        return value

    def items(self, field: str) -> Sequence[Any]:
        """Return a list, an empty one where it is missing.

        Raises:
            SettingsError: the value is no list.
        """
        value = self._config.get(field)
        if value is None:
            return ()
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self.wrong(field, "must be a list", value)
        return value

    def whole(self, field: str, default: int | None = None) -> int:
        """Return a whole number of at least 1.

        Raises:
            SettingsError: it is missing and has no default, or is another value.
        """
        given = self.get(field)
        value = default if given is None else given
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            # Some families write the value of each layer.
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(field, "must be a whole number of at least 1", given)
        return value

    def whole_or_zero(self, field: str) -> int:
        """Return a whole number, or 0 where there is none. Configurations write "none" in several ways."""
        return self.whole(field) if self.get(field) else 0

    def any_of(self, *fields: str) -> int:
        """Return the first of several fields that is there, or 0."""
        return next(filter(None, (self.whole_or_zero(field) for field in fields)), 0)

    def wrong(self, field: str, must: str, value: object) -> SettingsError:
        """Return the error about a field."""
        return SettingsError(f"model {self.name}: config.json: {field} {must}, got {value!r}")
