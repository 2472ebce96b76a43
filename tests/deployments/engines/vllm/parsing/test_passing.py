"""What is known without a parser is, token by token, what the parser says: outputs that hypothesis makes up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deployments.engines.vllm.parsing.output import VllmOutputParser
from deployments.engines.vllm.parsing.passing import NOTHING, passing_of
from deployments.engines.vllm.parsing.request import chat_request
from deployments.engines.vllm.parsing.tokens import TokenTexts
from penstock.models import OutputParsing, ParsedDelta, Tool, ToolMode
from tests.deployments.engines.vllm.parsing.families import SPECIAL, make_tokenizer

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

TOOLS = (Tool("f", "", json.dumps({"properties": {"x": {"type": "string"}}})),)
REASONERS = (None, "deepseek_r1", "deepseek_v3", "qwen3")
WHITE = st.sampled_from(["", "", " ", "\n", "  \n", "\t", "\x1c", "\x85", " \u2028"])
ODD = (
    "{", "}", "}}", "[", "]", '"', "\\", '\\"', "<", "</", ">", ":", ",", "<tool_call>", "</tool_call>", "<tool_",
    "é漢", "call>", " ", "\n", "word", "a < b", '"name"', '"name": "g"', '"arguments"', '"arguments": ', "<think>",
    "</think>", "<|end|>", "null", "12", "\x1c",
)  # fmt: skip
Chunks = Sequence[str]

HARD = (
    # Braces, quotes and tags inside of a string, and a second call.
    [
        *"So.",
        "</think>",
        "<tool_call>",
        '{"name": "f", "arguments": {"x',
        '": "}}',
        '</tool_call>\\"',
        '{"}}',
        "</tool_call>",
        "a < b",
        "<tool_call>",
        '{"name":"f","arguments":{}}',
        "</tool_call>",
        "word",
    ],
    # Arguments before the name, and a key that is neither.
    ["</think>", "<tool_call>", *'{"arguments": {"x": [1, {}]}, "other": null, "name": "f"}', "</tool_call>", "\n"],
    # White space of every kind, and arguments that are no object.
    [
        "<think>",
        "1 < 2",
        "</think>",
        " ",
        "<tool_call>",
        "\n{",
        '"name":\t"a b"',
        "\x85,",
        '"arguments"\x1c: ',
        "[12,",
        '"é漢"]',
        "  \n}",
        "\n",
        "</tool_call>",
    ],
    # Tags in pieces, and a call that breaks off.
    [
        "So",
        "</think>",
        "<tool_",
        "call>",
        '{"name": "f", ',
        '"arguments": {"x": "a',
        "</",
        "tool_call>",
        "<",
        "<tool_call>",
        '{"name": "g", "arg',
    ],
    # One that is wrong from the beginning, and reasoning that does not end.
    [
        "Never ends ",
        "<tool_call>",
        "}{",
        '"name": "f"',
        "</tool_call>",
        "<tool_call>",
        "null",
        "</tool_call>",
        "<|end|>",
    ],
)
"""Outputs that are known to be hard, in every run."""


def _text() -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(ODD), max_size=6).map("".join)


def _values() -> st.SearchStrategy[Any]:
    leaf = st.none() | st.booleans() | st.integers(-99, 99) | _text()
    return st.recursive(
        leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text(), inner, max_size=3), max_leaves=5
    )


@st.composite
def calls(draw: st.DrawFn) -> str:
    """Draw a call, often a right one."""
    name = json.dumps(draw(st.sampled_from(["f", "get_weather", "a b", "", '"'])))
    arguments = json.dumps(
        draw(st.dictionaries(_text(), _values(), max_size=3) | _values()),
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, None, 1])),
    )
    parts = [f'"name":{draw(WHITE)}{name}', f'"arguments"{draw(WHITE)}:{draw(WHITE)}{arguments}']
    if draw(st.integers(0, 4)) == 0:
        parts.reverse()
    if draw(st.integers(0, 5)) == 0:
        parts.insert(draw(st.integers(0, 2)), f'"other": {json.dumps(draw(_values()))}')
    body = draw(WHITE) + "{" + f",{draw(WHITE)}".join(parts) + draw(WHITE) + "}" + draw(WHITE)
    call = f"<tool_call>{body}</tool_call>"
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(call)))
        call = call[:at] + draw(st.sampled_from(ODD) | st.just("")) + call[at + draw(st.integers(0, 2)) :]
    return call


@st.composite
def outputs(draw: st.DrawFn) -> list[str]:
    """Draw an output in chunks, each the text of one token."""
    thought = draw(st.sampled_from(["", "<think>So, 1 < 2.</think>", "So it is.</think>", "Never ends "]))
    parts = [thought, *draw(st.lists(_text() | calls(), max_size=5))]
    # Tags of reasoning are tokens, those of calls only for some models.
    whole = ("<think>", "</think>", *draw(st.sampled_from([("<tool_call>", "</tool_call>"), ()])))
    step = draw(st.sampled_from([1, 2, 4, 9]))
    chunks = []
    for part in re.split(f"({'|'.join(whole)})", "".join(parts)):
        at, sizes = 0, [len(part)] if part in whole else []
        while at < len(part):
            size = sizes.pop() if sizes else draw(st.integers(1, step))
            chunks.append(part[at : at + size])
            at += size
    return chunks


def hard(test: Callable[..., Any]) -> Callable[..., Any]:
    """Try the known outputs too."""
    for chunks in HARD:
        test = example(chunks=chunks)(test)
    return test


class Outputs:
    """Parsers of one family, and the tokens of chunks."""

    def __init__(self, tokenizer: Any, tool: str | None, reasoner: str | None, mode: ToolMode) -> None:
        from vllm.parser import ParserManager

        self._tokenizer = tokenizer
        kind = ParserManager.get_parser(
            tool_parser_name=tool, reasoning_parser_name=reasoner, enable_auto_tools=tool is not None
        )
        self._request = chat_request(OutputParsing(TOOLS if tool else (), mode), None)
        self._make = lambda: kind(tokenizer, self._request.tools, chat_template_kwargs={"thinking": True})
        vocabulary = tokenizer.get_vocab()
        self._tokens = {tag: vocabulary[tag] for tag in SPECIAL}
        self._word = vocabulary["a"]

    def token(self, chunk: str) -> int:
        return int(self._tokens.get(chunk, self._word))

    def parser(self, *, passes: bool) -> VllmOutputParser:
        parser = self._make()
        passing = passing_of(parser, self._request) if passes else NOTHING
        texts = TokenTexts(lambda: lambda _token: "", lags=False)
        return VllmOutputParser(parser, self._request, [self._word], texts, short_call_ids=False, passing=passing)

    def pieces(self, chunks: Chunks, *, passes: bool) -> list[ParsedDelta | None]:
        parser = self.parser(passes=passes)
        found = [parser.feed([self.token(chunk)], chunk) for chunk in chunks]
        return [*found, parser.feed([], "", last=True)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tokenizer(tmp_path_factory.mktemp("passing"))


@pytest.fixture(params=REASONERS, ids=str)
def family(request: pytest.FixtureRequest, tokenizer: Any) -> Outputs:
    return Outputs(tokenizer, "hermes", request.param, ToolMode.AUTO)


many = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))


@many
@given(chunks=outputs())
@hard
def test_each_piece_is_what_a_parser_says_that_sees_every_token(
    family: Outputs, caplog: pytest.LogCaptureFixture, chunks: Chunks
) -> None:
    assert family.pieces(chunks, passes=False) == family.pieces(chunks, passes=True)
    assert "parser.passed_otherwise" not in caplog.text


@settings(many, max_examples=2)
@given(chunks=outputs())
@hard
def test_an_output_that_ends_anywhere_is_what_the_parser_says(family: Outputs, chunks: Chunks) -> None:
    for size in range(len(chunks)):
        assert family.pieces(chunks[:size], passes=False)[-1] == family.pieces(chunks[:size], passes=True)[-1]


@pytest.mark.parametrize("mode", [ToolMode.NONE, ToolMode.REQUIRED])
@settings(many, max_examples=3)
@given(chunks=outputs())
@hard
def test_requests_that_want_no_call_or_one_get_what_the_parser_says(
    tokenizer: Any, mode: ToolMode, chunks: Chunks
) -> None:
    family = Outputs(tokenizer, "hermes", "deepseek_r1", mode)

    assert family.pieces(chunks, passes=False) == family.pieces(chunks, passes=True)


@pytest.mark.parametrize("reasoner", REASONERS[1:])
@settings(many, max_examples=3)
@given(chunks=outputs())
@hard
def test_reasoning_alone_is_what_the_parser_says(tokenizer: Any, reasoner: str, chunks: Chunks) -> None:
    family = Outputs(tokenizer, None, reasoner, ToolMode.NONE)

    assert family.pieces(chunks, passes=False) == family.pieces(chunks, passes=True)


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "arguments": {"x": ' + "[" * 1200 + "]" * 1200 + ', "y": 2}}',
        '{"name": "f", "arguments": {"x": ' + "7" * 5000 + ', "y": 2}}',
    ],
    ids=["deep", "long number"],
)
def test_json_that_python_does_not_read_is_left_to_the_parser(tokenizer: Any, body: str) -> None:
    family = Outputs(tokenizer, "hermes", "deepseek_r1", ToolMode.AUTO)
    text = f"So.</think><tool_call>{body}</tool_call>"
    chunks = ["So", ".", "</think>", "<tool_call>", *(text[at : at + 10] for at in range(22, len(text), 10))]
    assert text == "".join(chunks)

    assert family.pieces(chunks, passes=False) == family.pieces(chunks, passes=True)


def test_the_parser_sees_few_tokens_of_a_call_and_none_of_text(tokenizer: Any) -> None:
    """The name, the last brace and both tags, and before each what it had not seen."""
    family = Outputs(tokenizer, "hermes", "deepseek_r1", ToolMode.AUTO)
    words = ["word "] * 40
    text = ["So ", "</think>", *words, "<b> "]
    call = [
        "<tool_call>",
        '{"',
        "name",
        '": "',
        "f",
        '", "',
        "arguments",
        '": ',
        '{"x": "',
        *words,
        '{}"',
        "}}",
        "</tool_call>",
    ]
    parser = family.parser(passes=True)
    inner = parser._parser
    parse, seen = inner.parse_delta, []

    def watched(text: str, *args: Any, **kwargs: Any) -> Any:
        seen.append(text)
        return parse(text, *args, **kwargs)

    inner.parse_delta = watched
    for chunk in [*text, *call, *words, *call, *words]:
        parser.feed([family.token(chunk)], chunk)

    own = ["<tool_call>", '", "', "}}", "</tool_call>"]
    assert ["So ", "</think>", *own, *own] == [chunk for chunk in seen if chunk in (*text, *call)]
    assert len(seen) <= 2 * (2 + 2 * len(own))
