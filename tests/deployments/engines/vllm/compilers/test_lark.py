"""Grammars of tool calls for llguidance, against what xgrammar accepts of the same structural tag."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from deployments.engines.factory import resolve_model
from deployments.engines.vllm.compilers.check import special_tokens
from deployments.engines.vllm.compilers.lark import SpecialTokens, UnknownFormatError, to_lark
from deployments.engines.vllm.parsing.request import grammar_request
from penstock.models import OutputParsing, Tool, ToolMode

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

STRICT = Tool(
    "get_weather",
    "",
    '{"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, '
    '"required": ["city"], "additionalProperties": false}',
    strict=True,
)
FREE = Tool("get_time", "", '{"type": "object", "properties": {"zone": {"type": "string"}}}')
PARSERS = ("hermes", "longcat", "qwen3_coder", "kimi_k2", "minimax_m2", "glm45", "deepseek_v32")


@pytest.fixture(scope="module", params=["tags are tokens", "tags are text"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The demo tokenizer, as it is and without tokens for the tags."""
    from vllm.tokenizers import get_tokenizer

    if request.param == "tags are tokens":
        return get_tokenizer(resolve_model("demo"))
    folder = tmp_path_factory.mktemp("tokenizer") / "demo"
    shutil.copytree(resolve_model("demo"), folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["added_tokens"] = [one for one in content["added_tokens"] if one["special"]]
    file.write_text(json.dumps(content), encoding="utf-8")
    return get_tokenizer(str(folder))


def tag(tokenizer: Any, parser: str, *tools: Tool, mode: ToolMode = ToolMode.REQUIRED, single: bool = False) -> Any:
    from vllm.parser import ParserManager

    kind = ParserManager.get_parser(tool_parser_name=parser, enable_auto_tools=True)
    request = grammar_request(OutputParsing(tools, mode, single_call=single), None)
    adjusted = kind(tokenizer, request.tools, chat_template_kwargs={}).adjust_request(request)
    return json.loads(adjusted.structured_outputs.structural_tag)


class Judges:
    """Both compilers on one structural tag."""

    def __init__(self, tokenizer: Any, content: Any) -> None:
        import llguidance
        import llguidance.hf
        import xgrammar

        self._xgrammar = xgrammar.GrammarCompiler(
            xgrammar.TokenizerInfo.from_huggingface(tokenizer)
        ).compile_structural_tag(json.dumps(content))
        self.special = special_tokens("llguidance", tokenizer)
        lark = to_lark(content, self.special, any_whitespace=True)
        self._tokenizer = llguidance.hf.from_tokenizer(tokenizer)
        self._lark = llguidance.grammar_from("grammar", lark)
        assert not llguidance.LLMatcher.validate_grammar(self._lark, self._tokenizer), lark

    def accept(self, text: str) -> tuple[bool, bool]:
        """Return whether xgrammar and llguidance take a text as complete."""
        import xgrammar

        one = xgrammar.GrammarMatcher(self._xgrammar, terminate_without_stop_token=True)
        return bool(one.accept_string(text) and one.is_completed()), self._takes(self._tokenizer.tokenize_str(text))

    def accept_spelled(self, text: str, *tokens: str) -> bool:
        """Return whether llguidance takes a text in which only these tags are tokens, and others are spelled."""
        ids: list[int] = []
        for piece in re.split(f"({'|'.join(map(re.escape, tokens))})" if tokens else "$", text):
            # A tag in two parts is no longer one token.
            ids += (
                [self.special.ids[piece]]
                if piece in tokens
                else chain(*map(self._tokenizer.tokenize_str, re.split("(?<=<)", piece)))
            )
        return self._takes(ids)

    def _takes(self, ids: list[int]) -> bool:
        import llguidance

        matcher = llguidance.LLMatcher(self._tokenizer, self._lark)
        return bool(matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting())


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


GOOD = hermes("get_weather", '{"city": "Paris"}')
OTHER = hermes("get_time", '{"anything": [1, {"a": null}]}')
OUTPUTS = (
    GOOD,
    OTHER,
    GOOD + OTHER,
    OTHER + GOOD + GOOD,
    hermes("get_weather", '{"city": "Paris", "days": 3}'),
    hermes("get_weather", '{"city": 3}'),
    hermes("get_weather", '{"days": 3}'),
    hermes("get_weather", '{"city": "Paris", "more": 1}'),
    hermes("nobody", "{}"),
    "",
    "Only text.",
    f"Text before. {GOOD}",
    f"{GOOD} Text behind.",
    f"a < b {GOOD} <tool {OTHER} end",
    GOOD[:-4],
    GOOD[:40],
    "<tool_call>",
    "<think>Why?</think> Text.",
    f"<think>{GOOD}</think>{OTHER}</think> end",
    "text</tool_call>",
)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("mode", [ToolMode.REQUIRED, ToolMode.AUTO])
def test_both_compilers_take_the_same_outputs(tokenizer: Any, mode: ToolMode, single: bool) -> None:
    judges = Judges(tokenizer, tag(tokenizer, "hermes", STRICT, FREE, mode=mode, single=single))
    taken = {output: judges.accept(output) for output in OUTPUTS}

    assert {output: one for output, (one, _) in taken.items()} == {
        output: other for output, (_, other) in taken.items()
    }
    assert taken[GOOD] == (True, True)
    assert taken[hermes("get_weather", '{"city": 3}')] == (False, False)
    assert taken["Only text."] == (mode is ToolMode.AUTO, mode is ToolMode.AUTO)


def test_a_tag_inside_json_is_spelled(tokenizer: Any) -> None:
    judges = Judges(tokenizer, tag(tokenizer, "hermes", STRICT))
    text, tags = hermes("get_weather", '{"city": "<think>"}'), ["<tool_call>", "</tool_call>"]
    assert judges.accept(text) == (True, "<think>" not in judges.special.ids)
    assert judges.accept_spelled(text, *(each for each in tags if each in judges.special.ids))


@pytest.mark.parametrize("parser", ["hermes", "longcat"])
def test_free_text_can_not_spell_a_call_past_its_schema(tokenizer: Any, parser: str) -> None:
    """A spelled tag begins a call too: vLLM's parser of Hermes reads text."""
    judges = Judges(tokenizer, tag(tokenizer, parser, STRICT, mode=ToolMode.AUTO))
    name = "tool_call" if parser == "hermes" else "longcat_tool_call"
    good, bad = (
        f'Text. <{name}>\n{{"name": "get_weather", "arguments": {{"city": {city}}}}}\n</{name}>'
        for city in ('"a"', "3")
    )
    ends = [each for each in (f"</{name}>",) if each in judges.special.ids]
    assert judges.accept_spelled(good, *ends)
    assert not judges.accept_spelled(bad, *ends)
    assert judges.accept_spelled("Text < <tool> </think> <think>.")


def test_free_arguments_end_at_the_tag_in_either_form(tokenizer: Any) -> None:
    part = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "\n</tool_call>"}
    judges = Judges(tokenizer, {"type": "structural_tag", "format": part})
    for inside in ("", "x\ny\n", "<think>\n", "<a></tool_call", "\n</think>\n\n"):
        whole = f"<a>{inside}\n</tool_call>"
        assert judges.accept(whole) == (True, True), inside
        assert judges.accept_spelled(whole), inside
        assert judges.accept(f"{whole} more") == (False, False)
        assert not judges.accept_spelled(f"{whole} more")


@pytest.mark.parametrize("trigger", ["<tool", "<tool_call>", "<tool_call>\n", "<"])
def test_a_trigger_may_end_inside_a_token(tokenizer: Any, trigger: str) -> None:
    tags = [
        {"type": "tag", "begin": f"<tool_call>\n{name}:", "content": schema, "end": "</tool_call>"}
        for name in ("a", "b")
        for schema in [{"type": "json_schema", "json_schema": {"enum": [name]}}]
    ]
    content = {"type": "triggered_tags", "triggers": [trigger], "tags": tags}
    judges = Judges(tokenizer, {"type": "structural_tag", "format": content})
    for text, right in {
        'x <tool_call>\na:"a"</tool_call> y <tool_call>\nb:"b"</tool_call>': True,
        '<tool_call>\na:"b"</tool_call>': False,
        "text > </": trigger != "<",
    }.items():
        assert judges.accept(text) == (right, right), text
    # As a token, the tag always begins a call.
    cut = trigger.endswith("\n")
    assert judges.accept("<tool_call>") == (cut, cut and not judges.special.ids.get("<tool_call>"))


def variants() -> Iterator[tuple[str, ToolMode, bool]]:
    for parser in PARSERS:
        for mode in (ToolMode.REQUIRED, ToolMode.AUTO):
            for single in (False, True):
                if mode is ToolMode.REQUIRED or single:
                    yield parser, mode, single


@pytest.mark.parametrize(("parser", "mode", "single"), list(variants()))
def test_tools_without_a_strict_schema_have_a_grammar(
    tokenizer: Any, parser: str, mode: ToolMode, single: bool
) -> None:
    import llguidance

    content = tag(tokenizer, parser, FREE, mode=mode, single=single)
    lark = to_lark(content, special_tokens("llguidance", tokenizer), any_whitespace=False)
    assert not llguidance.LLMatcher.validate_grammar(llguidance.grammar_from("grammar", lark))


def test_strict_parameters_in_qwens_format_follow_their_schema(tokenizer: Any) -> None:
    judges = Judges(tokenizer, tag(tokenizer, "qwen3_coder", STRICT, single=True))

    def call(*parameters: str) -> str:
        shown = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, _, value in map(split, parameters))
        return f"<tool_call>\n<function=get_weather>\n{shown}\n</function>\n</tool_call>"

    def split(parameter: str) -> tuple[str, str, str]:
        return parameter.partition("=")

    assert judges.accept(call("city=Paris"))[1]
    assert judges.accept(call('city=<b> & "more"', "days=3"))[1]
    assert not judges.accept(call("days=3"))[1]
    assert not judges.accept(call("city=Paris", "days=three"))[1]


def test_a_format_without_translation_is_named(tokenizer: Any) -> None:
    with pytest.raises(UnknownFormatError, match="glm_xml"):
        to_lark(tag(tokenizer, "glm45", STRICT), SpecialTokens(), any_whitespace=False)


def test_a_special_token_in_a_fixed_text_is_that_token() -> None:
    content = {"format": {"type": "const_string", "value": "a<|call|>b"}}
    assert 'start: "a" <[77]> "b"' in to_lark(content, SpecialTokens({"<|call|>": 77, "<|": 1}), any_whitespace=False)


def test_json_is_compact_unless_the_pool_is_set_otherwise() -> None:
    content = {"format": {"type": "json_schema", "json_schema": {"type": "integer"}}}
    assert '"whitespace_flexible": false' in to_lark(content, SpecialTokens(), any_whitespace=False)
    assert '"whitespace_flexible": true' in to_lark(content, SpecialTokens(), any_whitespace=True)
