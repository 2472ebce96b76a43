"""Structural tags: what stands between the tags follows the schema, and all other text is free."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from deployments.demo_model import MODEL_DIR
from deployments.engines.vllm.compilers.check import silent_gap, special_tokens
from deployments.engines.vllm.compilers.judge import judge
from deployments.engines.vllm.compilers.lark import to_lark
from deployments.engines.vllm.compilers.tags import TagForm, format_of
from penstock.models import ConstraintKind, StructuralTag, StructuredOutput, TaggedSchema

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

RECORD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TAG = StructuralTag(
    (TaggedSchema("<call=f>", json.dumps(RECORD), "</call>"), TaggedSchema("<call=g>", '{"enum": [1, 2]}', "</call>")),
    ("<call=",),
)


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(MODEL_DIR))


def accepted_by_llguidance(text: str) -> bool:
    import llguidance
    import llguidance.hf

    ll = llguidance.hf.from_tokenizer(tokenizer(), len(tokenizer()))
    lark = to_lark(format_of(TAG), special_tokens("llguidance", tokenizer()), any_whitespace=False)
    matcher = llguidance.LLMatcher(ll, llguidance.grammar_from("grammar", lark), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = ll.tokenize_str(text)
    # A text that is refused puts a matcher into an error.
    return bool(matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting())


def accepted_by_xgrammar(text: str) -> bool:
    import xgrammar

    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer())
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_structural_tag(json.dumps(format_of(TAG)))
    matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)
    return bool(matcher.accept_string(text) and matcher.is_completed())


@pytest.mark.parametrize("accepted", [accepted_by_llguidance, accepted_by_xgrammar])
@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Only text, 1 < 2.", True),
        ('<call=f>{"a":1}</call>', True),
        ('First <call=f>{"a":1}</call>, then <call=g>2</call> and <call=g>1</call>.', True),
        ('<call=f>{"a":"x"}</call>', False),
        ("<call=f>{}</call>", False),
        ("<call=g>3</call>", False),
        ("<call=h>1</call>", False),
        ('<call=f>{"a":1}', False),
        ("text <call=", False),
    ],
)
def test_what_stands_between_tags_follows_the_schema(accepted: Any, text: str, right: bool) -> None:
    assert accepted(text) == right


def test_a_tag_has_the_form_of_the_engines_compiler() -> None:
    from vllm.sampling_params import StructuredOutputsParams

    wanted = StructuredOutputsParams(structural_tag=json.dumps(format_of(TAG)))
    assert TagForm("xgrammar", tokenizer, any_whitespace=False).of(wanted) is wanted
    found = TagForm("llguidance", tokenizer, any_whitespace=False).of(wanted)
    assert found.structural_tag is None
    assert "start:" in found.grammar
    plain = StructuredOutputsParams(regex="a")
    assert TagForm("llguidance", tokenizer, any_whitespace=False).of(plain) is plain


def test_what_xgrammar_would_ignore_in_a_tag_is_found() -> None:
    part = TaggedSchema("<a>", '{"minimum": 5}', "</a>")
    asked = StructuredOutput(ConstraintKind.STRUCTURAL_TAG, tag=StructuralTag((part,), ("<a>",)))
    assert "must have 'type' beside 'minimum'" in str(silent_gap("xgrammar", asked))
    assert silent_gap("llguidance", asked) is None


async def test_a_tag_that_fails_as_a_whole_is_refused_without_a_place() -> None:
    async def problem(constraint: StructuredOutput) -> str:
        return "too large" if constraint.tag is not None else ""

    found = await judge("llguidance", StructuredOutput(ConstraintKind.STRUCTURAL_TAG, tag=TAG), problem)
    assert (found.problem, found.field) == ("too large", "")
