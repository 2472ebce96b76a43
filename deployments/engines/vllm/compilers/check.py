"""Check of a constraint by the compiler that an engine uses."""

from __future__ import annotations

import importlib.metadata
import json
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from deployments.engines.vllm.compilers.lark import SpecialTokens
from deployments.engines.vllm.compilers.place import with_place
from deployments.engines.vllm.compilers.xgrammar import gap
from penstock.models import ConstraintKind, StructuredOutput

Compiler: TypeAlias = Literal["llguidance", "xgrammar"]

BACKENDS: dict[Compiler, str] = {"llguidance": "guidance", "xgrammar": "xgrammar"}
"""vLLM's name of each compiler."""
_RECENT = 256


def compiler_id(compiler: Compiler) -> str:
    """Return name and version of a compiler. Two versions may follow a constraint differently."""
    return f"{compiler}{importlib.metadata.version(compiler)}"


def takes_tokenizer(compiler: Compiler, tokenizer: Any) -> bool:
    """Return whether a compiler can work with a model's tokenizer. Of llguidance this is known beforehand."""
    if compiler != "llguidance":
        return True
    from vllm.v1.structured_output.backend_guidance import GuidanceBackend

    return bool(GuidanceBackend.is_tokenizer_supported(tokenizer))


def special_tokens(compiler: Compiler, tokenizer: Any) -> SpecialTokens:
    """Return the special tokens of a tokenizer, as llguidance has them; none for another compiler.

    Those that the tokenizer itself marks as special are control. A tokenizer without such marks has no others.
    """
    if compiler != "llguidance" or not takes_tokenizer(compiler, tokenizer):
        return SpecialTokens()
    from llguidance.hf import from_tokenizer

    # Mistral's own tokenizer brings one along.
    of_compiler = getattr(tokenizer, "llg_tokenizer", None) or from_tokenizer(tokenizer)
    added = tokenizer.get_added_vocab() if hasattr(tokenizer, "get_added_vocab") else {}
    ids = {text: token for text, token in added.items() if of_compiler.is_special_token(token)}
    marks = getattr(tokenizer, "added_tokens_decoder", None)
    marked = (
        ids.values()
        if marks is None
        else (token for token in ids.values() if token not in marks or marks[token].special)
    )
    return SpecialTokens(ids, frozenset(marked) | frozenset(tokenizer.all_special_ids))


@lru_cache(maxsize=_RECENT)
def silent_gap(compiler: Compiler, constraint: StructuredOutput) -> str | None:
    """Return what of a constraint the compiler would ignore without an error; None where it follows or refuses all.

    llguidance refuses what it does not follow.
    """
    if compiler != "xgrammar":
        return None
    if constraint.tag is not None:
        texts = (StructuredOutput(ConstraintKind.JSON_SCHEMA, each.schema) for each in constraint.tag.structures)
        return next((found for text in texts if (found := silent_gap(compiler, text)) is not None), None)
    if constraint.kind is not ConstraintKind.JSON_SCHEMA:
        return None
    try:
        schema = json.loads(constraint.text)
    except (ValueError, RecursionError):
        return None
    return gap(schema) if isinstance(schema, dict) else None


def told(error: BaseException, constraint: StructuredOutput | None = None) -> str:
    """Return a compiler's own words, on one line and without its prefixes, with their place in a JSON Schema."""
    text = " ".join(str(error).split())
    for prefix in ("Grammar error: ", "Invalid grammar specification: "):
        text = text.removeprefix(prefix)
    if constraint is None or constraint.kind is not ConstraintKind.JSON_SCHEMA:
        return text
    try:
        return with_place(json.loads(constraint.text), text)
    except (ValueError, RecursionError):
        return text
