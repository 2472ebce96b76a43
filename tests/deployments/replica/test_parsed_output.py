"""Parsed output in a log: pieces beside raw text, resumes, ends, and the ids of calls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cluster.models import ResumeRecord, SequenceEnd
from deployments.engines.sim.parser import SimParser
from deployments.replica.output_log import OutputLog
from deployments.replica.parsed_output import ParsedOutput
from penstock.models import FinishReason, OutputParsing, ParsedDelta, Tool, ToolCallDelta
from tests.deployments.replica.test_output_log import Outlet

PARSING = OutputParsing((Tool("f"), Tool("g")))
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def make_log(resume: ResumeRecord | None = None, parsing: OutputParsing = PARSING) -> OutputLog:
    log = OutputLog("r", "a", lambda _log, _ended: None, resume, parsing=parsing)
    log.on_parser(SimParser(list, tools=True))  # type: ignore[arg-type]
    return log


def feed(log: OutputLog, text: str) -> None:
    for character in text:
        log.on_tokens([ord(character)], character, None)


def test_a_frame_has_the_raw_text_and_the_parsed_piece() -> None:
    log, outlet = make_log(), Outlet()
    log.attach(outlet, 7, 0)
    feed(log, "Hi. <tool_call>")
    frame = outlet.frame()

    assert (["Hi. <tool_call>"], [15]) == (list(frame.texts), list(frame.token_counts))
    assert [(0, "Hi. ")] == [(piece.delta, piece.text) for piece in frame.parsed]


def test_output_that_was_sent_is_sent_again_with_the_same_pieces() -> None:
    log, first, second = make_log(), Outlet(), Outlet()
    log.attach(first, 7, 0)
    feed(log, f"Hi. {CALL[:30]}")
    before = list(first.frame().parsed)
    feed(log, CALL[30:])
    log.on_end(SequenceEnd(FinishReason.STOP))
    rest = list(first.frame().parsed)
    assert log.attach(second, 8, 34)
    again = second.frame()

    assert rest == list(again.parsed)
    assert log.attach(second, 9, 0)
    whole = second.frame().parsed[0]
    assert "Hi. " == whole.text == "".join(piece.text for piece in (*before, *rest))
    assert '{"a": 1}' == whole.tool_calls[0].arguments
    assert "FINISH_REASON_TOOL_CALLS" in str(again.ends[0])


@pytest.mark.parametrize(
    ("reason", "final", "text"),
    [
        (FinishReason.STOP, False, "a <tool"),
        (FinishReason.LENGTH, False, "a <tool"),
        (FinishReason.CANCELLED, True, "a <tool"),
        (FinishReason.DEADLINE, True, "a <tool"),
        (FinishReason.CANCELLED, False, "a "),
        (FinishReason.ERROR, False, "a "),
    ],
)
def test_what_is_held_back_comes_where_nothing_continues_the_output(
    reason: FinishReason, final: bool, text: str
) -> None:
    log = make_log()
    feed(log, "a <tool")
    log.final = final
    log.on_end(SequenceEnd(reason))

    assert text == "".join(piece.text for piece in log.pieces if piece)
    assert log.end is not None
    assert reason is log.end.reason


def test_calls_end_with_tool_calls_only_after_a_stop() -> None:
    for reason, told in ((FinishReason.STOP, FinishReason.TOOL_CALLS), (FinishReason.LENGTH, FinishReason.LENGTH)):
        log = make_log()
        feed(log, CALL)
        log.on_end(SequenceEnd(reason))
        assert log.end is not None
        assert told is log.end.reason


def test_a_resumed_log_has_the_pieces_of_what_came_before() -> None:
    output = f"<think>So.</think>Hi. {CALL}"
    first = make_log()
    feed(first, output)
    first.on_end(SequenceEnd(FinishReason.STOP))
    whole = first.pieces[0]
    for place in range(1, len(output)):
        ids = tuple(map(ord, output[:place]))
        log = make_log(ResumeRecord(ids, place, "", output[:place]))
        feed(log, output[place:])
        log.on_end(SequenceEnd(FinishReason.STOP))
        assert whole is not None
        assert whole.text == "".join(piece.text for piece in log.pieces if piece)
        assert whole.reasoning == "".join(piece.reasoning for piece in log.pieces if piece)
        calls = [call for piece in log.pieces if piece for call in piece.tool_calls]
        assert whole.tool_calls[0].arguments == "".join(call.arguments for call in calls)
        assert [whole.tool_calls[0].id] == [call.id for call in calls if call.id]


def test_an_engine_without_parsers_gives_text() -> None:
    log = OutputLog("r", "a", lambda _log, _ended: None, parsing=PARSING)
    feed(log, CALL)
    log.on_end(SequenceEnd(FinishReason.STOP))

    assert [ParsedDelta(CALL)] == log.pieces
    assert log.end is not None
    assert FinishReason.STOP is log.end.reason


class Scripted:
    """Gives one piece after the other."""

    def __init__(self, *pieces: ParsedDelta, short: bool = False) -> None:
        self.short_call_ids = short
        self._pieces = iter(pieces)

    def feed(self, token_ids: Sequence[int], text: str, *, last: bool = False) -> ParsedDelta | None:
        return next(self._pieces)

    def reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        return 0


def calls(*deltas: ToolCallDelta) -> ParsedDelta:
    return ParsedDelta(tool_calls=deltas)


def test_calls_are_numbered_from_zero_and_named_first() -> None:
    pieces = (
        calls(ToolCallDelta(4, arguments="{")),
        calls(ToolCallDelta(4, name="f"), ToolCallDelta(4, arguments="}")),
        calls(ToolCallDelta(9, name="g", arguments="{}")),
        calls(ToolCallDelta(9)),
    )
    output = ParsedOutput(Scripted(*pieces), PARSING, "r")
    found = [output.feed([1], "x") for _ in pieces]

    assert found[0] is None
    assert found[1] is not None
    assert [(0, "f", "{}")] == [(call.index, call.name, call.arguments) for call in found[1].tool_calls]
    assert found[2] is not None
    assert [(1, "g", "{}")] == [(call.index, call.name, call.arguments) for call in found[2].tool_calls]
    assert found[3] is None


def test_ids_belong_to_the_choice_and_the_call() -> None:
    def ids(request_id: str, *, short: bool = False) -> list[str]:
        piece = calls(ToolCallDelta(0, name="f"), ToolCallDelta(1, name="g"))
        found = ParsedOutput(Scripted(piece, short=short), PARSING, request_id).feed([1], "x")
        assert found is not None
        return [call.id for call in found.tool_calls]

    assert ids("r/0") == ids("r/0")
    assert 4 == len({*ids("r/0"), *ids("r/1")})
    assert all(each.startswith("call_") and len(each) == 29 for each in ids("r"))
    assert all(each.isalnum() and len(each) == 9 for each in ids("r", short=True))
