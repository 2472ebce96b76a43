"""Parsed output in the router: what clients get, what is remembered, and what a later call gets of it."""

from __future__ import annotations

from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.generation.history import History
from router.generation.output import Output
from router.generation.parsed import join_calls, joined
from router.inference.idempotency import pack_result, replay
from router.links.receiver import AS_TEXT


def call(index: int, arguments: str = "", name: str = "") -> types.ToolCallDelta:
    return types.ToolCallDelta(index=index, arguments=arguments, name=name, id=f"call_{name}" if name else "")


PIECES = (
    pb.DeltaParsed(reasoning="So. "),
    None,
    pb.DeltaParsed(text="Hi. ", tool_calls=[call(0, name="f")]),
    pb.DeltaParsed(tool_calls=[call(0, '{"a"')]),
    pb.DeltaParsed(tool_calls=[call(0, ": 1}"), call(1, "{", "g")]),
    pb.DeltaParsed(tool_calls=[call(1, "}")], text=" Bye."),
)


def filled() -> Output:
    output = Output(0, logprobs=False, parsed=True)
    for number, piece in enumerate(PIECES):
        output.add([number], f"<{number}>", [], piece, plain=True)
    return output


def test_the_client_gets_the_pieces_and_not_the_raw_text() -> None:
    delta = filled().take().delta

    assert ("Hi.  Bye.", "So. ") == (delta.text, delta.reasoning)
    assert [("f", '{"a": 1}'), ("g", "{}")] == [(each.name, each.arguments) for each in delta.tool_calls]
    assert list(range(6)) == list(delta.token_ids)


def test_what_passes_at_once_has_its_piece() -> None:
    output, passed = Output(0, logprobs=False, parsed=True), []
    output.through = lambda *delta: passed.append(delta) is None
    for number, piece in enumerate(PIECES[:3]):
        output.add([number], f"<{number}>", [], piece, plain=True)

    assert [PIECES[0], pb.DeltaParsed(), PIECES[2]] == [piece for *_, piece in passed]


def test_a_later_call_gets_what_is_behind_the_tokens_that_its_client_has() -> None:
    for place in range(1, len(PIECES)):
        old, new = filled(), Output(0, logprobs=False, parsed=True)
        assert new.inherits(old)
        new.skip(place)
        assert new.prefix is not None
        before, rest = joined(PIECES[:place]), new.take().delta
        assert (before.text, before.reasoning) == (new.prefix.text, new.prefix.reasoning)
        assert list(before.tool_calls) == list(new.prefix.tool_calls)
        behind = joined(PIECES[place:])
        assert (behind.text, behind.reasoning) == (rest.text, rest.reasoning)
        assert list(behind.tool_calls) == list(rest.tool_calls)


def test_a_replica_tells_the_pieces_that_came_before() -> None:
    wire = pb.History(token_ids=range(6), text="<0><1><2><3><4><5>", delta_tokens=[1] * 6, delta_characters=[3] * 6)
    for number, piece in enumerate(PIECES):
        if piece is not None:
            wire.parsed.add(delta=number, text=piece.text, reasoning=piece.reasoning, tool_calls=piece.tool_calls)
    output = Output(0, logprobs=False, parsed=True)
    output.remember(wire)
    assert output.prefix is not None
    assert "Hi.  Bye." == output.prefix.text
    before, behind = output.history.parsed_at(3)
    assert ("Hi. ", "So. ", " Bye.") == (before.text, before.reasoning, behind.text)


def test_a_delta_that_is_its_text_is_passed_and_remembered_as_text() -> None:
    output, passed = Output(0, logprobs=False, parsed=True), []
    output.through = lambda *delta: passed.append(delta) is None
    for number, piece in enumerate((pb.DeltaParsed(reasoning="So. "), AS_TEXT, None, AS_TEXT)):
        output.add([number], f"<{number}>", [], piece, plain=True)

    assert [("<1>", None), ("<3>", None)] == [passed[1][2:], passed[3][2:]]
    for tokens, texts in ((1, ("", "<1><3>")), (2, ("<1>", "<3>")), (4, ("<1><3>", ""))):
        before, behind = output.history.parsed_at(tokens)
        assert (*texts, "So. ") == (before.text, behind.text, before.reasoning)


def test_raw_text_is_what_another_replica_gets() -> None:
    assert "<0><1><2><3><4><5>" == filled().history.record("m").prior_text
    assert 0 == len(History().record("m").prior_token_ids)


def test_pieces_of_calls_are_joined() -> None:
    pieces = [call(0, "{", "f"), call(1, "[", "g"), call(0, "}"), call(1, "]")]
    assert [call(0, "{}", "f"), call(1, "[]", "g")] == join_calls(pieces)
    assert "{" == pieces[0].arguments


def test_a_result_of_the_former_release_is_replayed() -> None:
    choice = api.Choice(text="abc", token_ids=[1, 2, 3], finish_reason=types.FINISH_REASON_STOP)
    data = pack_result(api.GenerateResponse(choices=[choice]), {0: [(1, 1), (2, 2), (3, 3)]})
    delta = next(iter(replay(data, (1,)))).delta
    assert ("bc", [2, 3], 1) == (delta.text, list(delta.token_ids), delta.offset)
