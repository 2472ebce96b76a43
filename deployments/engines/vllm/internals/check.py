"""The check at start: a vLLM that does not fit is told before it serves."""

from __future__ import annotations

import inspect
from functools import reduce
from importlib import import_module
from typing import Any

from cluster.errors import EngineStartError
from deployments.engines.vllm.internals.used import CHECKED, Used


def check_internals() -> None:
    """Check that the internals that we call or replace are those that we are written for.

    Raises:
        EngineStartError: one is missing, has other parameters, or lacks a field.
    """
    for each in CHECKED:
        found = _resolve(each)
        if each.parameters is not None:
            names = tuple(inspect.signature(found).parameters)
            if names != each.parameters:
                wanted = ", ".join(each.parameters)
                raise EngineStartError(f"this vLLM does not fit: {each.path} takes {', '.join(names)}, not {wanted}")
        if each.message and (missing := [name for name in each.attributes if name not in found.__struct_fields__]):
            raise EngineStartError(f"this vLLM does not fit: {each.path} has no {', '.join(missing)}")


def _resolve(used: Used) -> Any:
    try:
        return reduce(getattr, used.path.split("."), import_module(used.module))
    except (ImportError, AttributeError) as error:
        raise EngineStartError(f"this vLLM does not fit: it has no {used.name}: {error}") from error
