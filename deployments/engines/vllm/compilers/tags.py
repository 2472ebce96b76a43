"""Structural tags of clients in the form that the engine's compiler reads.

vLLM's own form for llguidance lets any JSON stand between the tags, so it is not used.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

from deployments.engines.vllm.compilers.check import Compiler, special_tokens
from deployments.engines.vllm.compilers.lark import SpecialTokens, to_lark
from deployments.engines.vllm.compilers.names import unnamed
from penstock.models import StructuralTag


def format_of(tag: StructuralTag) -> dict[str, Any]:
    """Return a tag in xgrammar's form."""
    tags = [
        {
            "type": "tag",
            "begin": each.begin,
            "content": {"type": "json_schema", "json_schema": unnamed(json.loads(each.schema))},
            "end": each.end,
        }
        for each in tag.structures
    ]
    return {
        "type": "structural_tag",
        "format": {"type": "triggered_tags", "triggers": list(tag.triggers), "tags": tags},
    }


class TagForm:
    """Form of structural tags of one engine."""

    def __init__(self, compiler: Compiler, open_tokenizer: Callable[[], Any], *, any_whitespace: bool) -> None:
        self._compiler = compiler
        self._open_tokenizer = open_tokenizer
        self._any_whitespace = any_whitespace

    @cached_property
    def _special_tokens(self) -> SpecialTokens:
        return special_tokens(self._compiler, self._open_tokenizer())

    def of(self, wanted: Any) -> Any:
        """Return vLLM's StructuredOutputsParams in the form that the compiler reads."""
        if self._compiler != "llguidance" or wanted is None or wanted.structural_tag is None:
            return wanted
        from vllm.sampling_params import StructuredOutputsParams

        grammar = to_lark(json.loads(wanted.structural_tag), self._special_tokens, any_whitespace=self._any_whitespace)
        return StructuredOutputsParams(grammar=grammar)
