"""The configuration of a tokenizer, as clients of vLLM's server read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cluster.digests import CONFIG_FILE, TEMPLATE_FILE


def config_text(files: Mapping[str, bytes]) -> str:
    """Return the configuration among tokenizer files as the text of a JSON object, with the chat template.

    A token that is an object there becomes its text. Files that can't be read are left out.
    """
    found = _object(files.get(CONFIG_FILE, b"{}"))
    found.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    if TEMPLATE_FILE in files:
        found["chat_template"] = files[TEMPLATE_FILE].decode(errors="replace")
    return json.dumps(found, ensure_ascii=False)


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
        return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else {}
    except (ValueError, RecursionError):
        return {}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return value["content"] if "content" in value else {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
