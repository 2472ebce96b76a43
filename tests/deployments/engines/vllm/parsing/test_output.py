"""vLLM's parsers, fed as an engine feeds them, against what they make of a whole output."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.engines.pieces import joined
from deployments.engines.vllm.parsing.output import VllmOutputParser
from deployments.engines.vllm.parsing.passing import NOTHING, passing_of
from deployments.engines.vllm.parsing.request import chat_request
from deployments.engines.vllm.parsing.tokens import TokenTexts
from deployments.replica.parsed_output import ParsedOutput
from penstock.models import OutputParsing, ParsedDelta, Tool, ToolMode
from tests.deployments.engines.vllm.parsing.families import FAMILIES, Family, make_tokenizer

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

TOOLS = (
    Tool("get_weather", "", json.dumps({"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}})),
    Tool("get_time", "", json.dumps({"properties": {"zone": {"type": "string"}}})),
)
Deltas = Sequence[tuple[list[int], str]]
"""Tokens and text of each delta."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tokenizer(tmp_path_factory.mktemp("families"))


class Case:
    """One family's parser, and its output token by token."""

    def __init__(self, family: Family, tokenizer: Any) -> None:
        from vllm.parser import ParserManager

        self.family = family
        self.tokenizer = tokenizer
        self.parsing = OutputParsing(TOOLS if family.tool else (), ToolMode.AUTO if family.tool else ToolMode.NONE)
        self.request = chat_request(self.parsing, None)
        self._class = ParserManager.get_parser(
            tool_parser_name=family.tool,
            reasoning_parser_name=family.reasoning,
            enable_auto_tools=family.tool is not None,
        )
        self.ids = tokenizer.encode(family.output, add_special_tokens=False)
        decode = self.decoder()
        self.deltas = [([token], decode(token)) for token in self.ids]

    def decoder(self) -> Callable[[int], str]:
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return lambda token: stream.step(self.tokenizer._tokenizer, token) or ""

    def vllm_parser(self) -> Any:
        return self._class(self.tokenizer, self.request.tools, chat_template_kwargs={})

    def output(self, *, lags: bool = False, parser: Any = None, passes: bool = True) -> ParsedOutput:
        parser = parser or self.vllm_parser()
        own = VllmOutputParser(
            parser,
            self.request,
            [1],
            TokenTexts(self.decoder, lags=lags),
            short_call_ids=False,
            passing=passing_of(parser, self.request) if passes else NOTHING,
        )
        return ParsedOutput(own, self.parsing, "request")

    def parse(self, deltas: Deltas, *, lags: bool = False) -> ParsedDelta:
        output = self.output(lags=lags)
        pieces = [output.feed(*delta) for delta in deltas]
        return joined([*pieces, output.feed([], "", last=True)]) or ParsedDelta()


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def case(request: pytest.FixtureRequest, tokenizer: Any) -> Case:
    return Case(request.param, tokenizer)


def content(piece: ParsedDelta) -> tuple[str, str, list[tuple[str, Any]]]:
    return piece.reasoning, piece.text, [(call.name, json.loads(call.arguments)) for call in piece.tool_calls]


def merged(deltas: Deltas) -> tuple[list[int], str]:
    return [token for ids, _ in deltas for token in ids], "".join(text for _, text in deltas)


def cuts(deltas: Deltas) -> Iterator[Deltas]:
    """Yield the output whole, in two parts at every place, and in random parts."""
    yield [merged(deltas)]
    for place in range(1, len(deltas)):
        yield [merged(deltas[:place]), merged(deltas[place:])]
    for seed in range(10):
        draw, at, parts = random.Random(seed), 0, []
        while at < len(deltas):
            size = draw.choice((1, 1, 2, 3, 5, 9))
            parts.append(merged(deltas[at : at + size]))
            at += size
        yield parts


def test_each_part_of_an_output_is_found(case: Case) -> None:
    family = case.family
    wanted = family.thought, family.text, [(name, json.loads(text)) for name, text in family.calls]

    assert wanted == content(case.parse(case.deltas))


def test_the_parser_agrees_with_vllms_parse_of_the_whole(case: Case) -> None:
    reasoning, text, calls = case.vllm_parser().parse(
        case.family.output, case.request, enable_auto_tools=True, model_output_token_ids=case.ids
    )
    found = content(case.parse(case.deltas))

    # Of a whole output vLLM drops white space between text and calls, which a stream has sent by then.
    assert (reasoning or "", (text or "").strip()) == (found[0], found[1].strip())
    assert [(call.name, json.loads(call.arguments)) for call in calls or ()] == found[2]


def test_cuts_between_deltas_change_nothing(case: Case) -> None:
    whole = case.parse(case.deltas)
    for deltas in cuts(case.deltas):
        assert whole == case.parse(deltas)


def test_what_a_parser_does_not_see_is_what_it_would_say(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """Each piece is the same where the parser sees every token, also of text that is cut anywhere."""
    for place in range(1, len(case.deltas) + 1):
        fast, slow = case.output(), case.output(passes=False)
        for delta in case.deltas[:place] if place == len(case.deltas) else [merged(case.deltas[:place])]:
            assert slow.feed(*delta) == fast.feed(*delta)
        assert slow.feed([], "", last=True) == fast.feed([], "", last=True)
        assert slow.reasoning_tokens(case.ids[:place]) == fast.reasoning_tokens(case.ids[:place])
    assert "parser.passed_otherwise" not in caplog.text


@pytest.mark.parametrize("seed", range(20))
def test_random_mixtures_of_markers_pass_as_the_parser_says(tokenizer: Any, seed: int) -> None:
    draw = random.Random(seed)
    words = (
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<",
        ">",
        "a < b",
        "<tool",
        "\n",
        "  ",
        "word",
        "é漢",
    )
    for family in FAMILIES:
        if family.tool not in (None, "hermes"):
            continue
        output = "".join(draw.choice((*words, " text", " more", '{"name": "f", "arguments": {}}')) for _ in range(40))
        case = Case(replace(family, output=output), tokenizer)
        fast, slow = case.output(), case.output(passes=False)
        for delta in case.deltas:
            assert slow.feed(*delta) == fast.feed(*delta)
        assert slow.feed([], "", last=True) == fast.feed([], "", last=True)


def test_text_that_lags_behind_its_tokens_changes_nothing(case: Case) -> None:
    """As with a stop string, whose length of text is held back."""
    whole, held = case.parse(case.deltas), 7
    text = "".join(text for _, text in case.deltas)
    fed, released, deltas = "", 0, []
    for ids, own in case.deltas:
        fed += own
        until = max(released, len(fed) - held)
        deltas.append((ids, text[released:until]))
        released = until
    deltas.append(([], text[released:]))

    assert whole == case.parse(deltas, lags=True)


def test_an_output_goes_on_elsewhere_after_every_token(case: Case) -> None:
    """A parser that gets what came before in one piece goes on as the first one did."""
    output = case.output()
    pieces = [output.feed(*delta) for delta in case.deltas]
    pieces.append(output.feed([], "", last=True))
    for place in range(1, len(case.deltas)):
        other = case.output()
        before = other.feed(*merged(case.deltas[:place]))
        rest = [other.feed(*delta) for delta in case.deltas[place:]]
        rest.append(other.feed([], "", last=True))
        assert (joined(pieces[:place]), pieces[place:]) == (before, rest)


@pytest.mark.parametrize("name", ["hermes", "hermes-text", "llama3_json", "llama3_json-text", "pythonic"])
def test_a_call_that_is_cut_before_its_name_is_text(tokenizer: Any, name: str) -> None:
    """Also what may become the beginning of a call."""
    case = Case(next(family for family in FAMILIES if family.name == name), tokenizer)
    for place in range(1, len(case.deltas)):
        found = case.parse(case.deltas[:place])
        if not found.tool_calls:
            assert merged(case.deltas[:place])[1] == found.text


@pytest.mark.parametrize("looks", range(4))
def test_a_parser_that_fails_gives_the_rest_as_text(
    tokenizer: Any, caplog: pytest.LogCaptureFixture, looks: int
) -> None:
    """Also where it fails on what it had not seen: the token at which it is asked is not lost."""
    case = Case(FAMILIES[0], tokenizer)
    output = case.output(parser=failing(case, looks))
    pieces = [output.feed(*delta) for delta in case.deltas]
    pieces.append(output.feed([], "", last=True))

    assert case.family.output == (joined(pieces) or ParsedDelta()).text
    assert ["parser.failed"] == [record.message for record in caplog.records if record.message == "parser.failed"]


@pytest.mark.parametrize("looks", [0, 1, 2, 5, 20])
def test_a_parser_that_fails_inside_of_a_delta_loses_nothing_of_it(tokenizer: Any, looks: int) -> None:
    """Neither what it said of the tokens before, nor the text of those after."""

    def parse(deltas: Deltas, *, lags: bool = False) -> ParsedDelta | None:
        output = case.output(parser=failing(case, looks), lags=lags, passes=False)
        return joined([*(output.feed(*delta) for delta in deltas), output.feed([], "", last=True)])

    case = Case(FAMILIES[0], tokenizer)
    one_by_one = parse(case.deltas)
    for deltas in cuts(case.deltas):
        assert one_by_one == parse(deltas)
    ids, text = merged(case.deltas)
    assert one_by_one == parse([(ids, text[:1]), *(([], each) for each in text[1:])], lags=True)


def failing(case: Case, looks: int) -> Any:
    """Return a parser that fails after so many calls."""
    parser = case.vllm_parser()
    parse, seen = parser.parse_delta, []

    def fails(text: str, *args: Any, **kwargs: Any) -> Any:
        seen.append(text)
        if len(seen) > looks:
            raise RuntimeError("a bug")
        return parse(text, *args, **kwargs)

    parser.parse_delta = fails
    return parser


def test_reasoning_is_counted(case: Case) -> None:
    output = case.output()
    for delta in case.deltas:
        output.feed(*delta)
    output.feed([], "", last=True)

    assert bool(case.family.thought) == bool(output.reasoning_tokens(case.ids))
    assert output.reasoning_tokens(case.ids) < len(case.ids)


def test_only_the_first_call_counts_where_one_is_wanted(tokenizer: Any) -> None:
    case = Case(FAMILIES[0], tokenizer)
    case.parsing = OutputParsing(TOOLS, single_call=True)

    assert list(case.family.calls[:1]) == [(call.name, call.arguments) for call in case.parse(case.deltas).tool_calls]


def test_ids_of_calls_depend_on_the_choice_alone(tokenizer: Any) -> None:
    case = Case(FAMILIES[0], tokenizer)
    first, second = case.parse(case.deltas).tool_calls

    assert [first, second] == list(case.parse([merged(case.deltas)]).tool_calls)
    assert first.id != second.id
    assert first.id.startswith("call_")


def test_the_decoder_is_only_needed_for_deltas_of_several_tokens(tmp_path: Path) -> None:
    def begin() -> Callable[[int], str]:
        raise AssertionError("decoded")

    texts = TokenTexts(begin, lags=False)
    assert [([5], "a")] == list(texts.split([5], "a", last=False))
    assert [([6], "b")] == list(texts.split([6], "b", last=True))
