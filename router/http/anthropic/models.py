"""Models as Anthropic's SDK lists them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.v1 import inference_pb2 as api

VERSION = "anthropic-version"
"""Header that Anthropic's clients send with every call, and others do not."""
_CREATED = "1970-01-01T00:00:00Z"
"""What Anthropic sends for a time that it does not know."""


def model_info(model: api.Model, name: str = "") -> dict[str, Any]:
    """Return the description of a model, or of the adapter of it that has this name."""
    return {
        "id": name or model.name,
        "type": "model",
        "display_name": name or model.name,
        "created_at": _CREATED,
        "lifecycle": "active",
        "max_input_tokens": model.max_context_tokens or None,
    }


def models_page(models: Iterable[api.Model]) -> dict[str, Any]:
    """Return the list of all models and their adapters, which is one page."""
    data = [model_info(each, name) for each in models for name in ("", *each.lora_adapters)]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"data": data, "has_more": False, **ends}
