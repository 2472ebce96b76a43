"""The simulated engine's parser."""

from __future__ import annotations

import pytest

from deployments.engines.pieces import joined
from deployments.engines.sim.parser import SimParser
from penstock.models import ParsedDelta, ToolCallDelta

CALLS = '<tool_call>\n{"name": "f", "arguments": {"a": {"b": "}"}}}\n</tool_call><tool_call>{"name": "g"}</tool_call>'
OUTPUT = f"<think>So 1 < 2.</think>Text <b>. {CALLS}"


def parser(*, tools: bool = True) -> SimParser:
    return SimParser(lambda text: [ord(each) for each in text], tools=tools)


def fed(output: str, size: int, *, tools: bool = True) -> ParsedDelta:
    reader = parser(tools=tools)
    pieces = [reader.feed([1], output[at : at + size]) for at in range(0, len(output), size)]
    return joined([*pieces, reader.feed([], "", last=True)]) or ParsedDelta()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_each_part_is_found_however_the_output_is_cut(size: int) -> None:
    calls = (ToolCallDelta(0, name="f", arguments='{"a": {"b": "}"}}'), ToolCallDelta(1, name="g"))

    assert ParsedDelta("Text <b>. ", "So 1 < 2.", calls) == fed(OUTPUT, size)
    assert ParsedDelta(f"Text <b>. {CALLS}", "So 1 < 2.") == fed(OUTPUT, size, tools=False)


def test_what_may_become_a_tag_comes_at_the_end() -> None:
    reader = parser()
    assert ParsedDelta("a ") == reader.feed([1], "a <tool_c")
    assert ParsedDelta("<tool_c") == reader.feed([], "", last=True)


def test_reasoning_is_counted_by_its_text() -> None:
    reader = parser()
    reader.feed([1, 2, 3], OUTPUT)
    assert len("So 1 < 2.") == reader.reasoning_tokens([1, 2, 3])
