"""Models as Anthropic's SDK lists them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.v1 import inference_pb2 as api
from penstock.values.objects import BodyError, shown
from router.http.bodies import page_limit

VERSION = "anthropic-version"
"""Header that Anthropic's clients send with every call, and others do not."""
_CREATED = "1970-01-01T00:00:00Z"
"""What Anthropic sends for a time that it does not know."""
_MOST = 1000
"""Most models of a page, also where a client names no limit: those that never ask for a second page get all."""


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


def models_page(models: Iterable[api.Model], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the models and their adapters that a query asks for: the first, or those next to a model.

    Raises:
        BodyError: names the parameter that is wrong.
    """
    limit = page_limit(query, _MOST, _MOST)
    data = [model_info(each, name) for each in models for name in ("", *each.lora_adapters)]
    after, before = query.get("after_id", ""), query.get("before_id", "")
    if after and before:
        raise BodyError("before_id", "must be absent with after_id")
    if before:
        left = data[: _place(data, "before_id", before)]
        found, more = left[-limit:], len(left) > limit
    else:
        left = data[_place(data, "after_id", after) + 1 :] if after else data
        found, more = left[:limit], len(left) > limit
    ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else {"first_id": None, "last_id": None}
    return {"data": found, "has_more": more, **ends}


def _place(data: list[dict[str, Any]], name: str, model: str) -> int:
    for index, each in enumerate(data):
        if each["id"] == model:
            return index
    raise BodyError(name, f"must be a model of this list, got {shown(model)}")
