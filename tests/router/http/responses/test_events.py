"""Events of a response: their order, and numbers that do not depend on who sends them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type_unchecked
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.http.responses.events import FROM_THE_BEGINNING, Events
from router.http.responses.pieces import (
    Piece,
    PieceKind,
    goes_on,
    merged,
    pack_pieces,
    pieces_of,
    pieces_of_items,
    unpack_pieces,
)

ID = "resp_0123456789abcdef0123456789abcdef"
BASE = {
    "id": ID,
    "object": "response",
    "created_at": 1,
    "model": "demo",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [],
}
R, T, C, A = PieceKind.REASONING, PieceKind.TEXT, PieceKind.CALL, PieceKind.ARGUMENTS
ANSWER = [
    Piece(R, "Hm, "),
    Piece(R, "well."),
    Piece(T, "\n\n"),
    Piece(T, "Let me "),
    Piece(T, "see."),
    Piece(C, call_id="call_1", name="look"),
    Piece(A, '{"a":'),
    Piece(A, "1}"),
    Piece(T, "\n"),
    Piece(C, call_id="call_2", name="go"),
    Piece(A, "{}"),
]


def stream(pieces: Sequence[Piece], *, after: int = FROM_THE_BEGINNING, complete: bool = True) -> list[dict[str, Any]]:
    """Return the events of a whole answer."""
    events = Events(ID, BASE, after)
    lines = [events.begin(queued=False), events.started(), *map(events.add, pieces), events.end(complete=complete)]
    response = events.response("completed" if complete else "incomplete", output=events.output)
    text = "".join([*lines, events.final(response)])
    found = []
    for block in text.split("\n\n")[:-1]:
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        found.append(event)
    return found


def test_the_events_of_an_answer_come_in_openais_order() -> None:
    kinds = [event["type"].removeprefix("response.") for event in stream(ANSWER)]
    assert kinds == [
        "created",
        "in_progress",
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]


def test_every_event_has_all_that_the_sdk_declares() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in stream(ANSWER):
        adapter.validate_python(event)
        assert construct_type_unchecked(value=event, type_=ResponseStreamEvent).type == event["type"]  # type: ignore[arg-type]


def test_the_items_are_what_the_deltas_say() -> None:
    events = stream(ANSWER)
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Hm, well."}]
    assert output[1]["content"][0]["text"] == "\n\nLet me see."
    assert [(item["call_id"], item["name"], item["arguments"]) for item in output[2:]] == [
        ("call_1", "look", '{"a":1}'),
        ("call_2", "go", "{}"),
    ]
    said = ["" for _ in output]
    for event in events:
        if event["type"].endswith(".delta"):
            said[event["output_index"]] += event["delta"]
            assert event["item_id"] == output[event["output_index"]]["id"]
    assert said == ["Hm, well.", "\n\nLet me see.", '{"a":1}', "{}"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == output
    assert len({item["id"] for item in output}) == 4


@pytest.mark.parametrize(
    ("pieces", "complete", "kinds"),
    [
        ([], True, ["message"]),
        ([Piece(T, " \n")], True, ["message"]),
        ([Piece(R, "Hm")], True, ["reasoning", "message"]),
        ([Piece(R, "Hm")], False, ["reasoning"]),
        ([], False, []),
        ([Piece(T, "\n"), Piece(C, call_id="c", name="f")], True, ["function_call"]),
        (
            [Piece(T, "A"), Piece(C, call_id="c", name="f"), Piece(T, "B")],
            True,
            ["message", "function_call", "message"],
        ),
    ],
)
def test_a_complete_answer_has_a_message_or_a_call(pieces: list[Piece], complete: bool, kinds: list[str]) -> None:
    output = stream(pieces, complete=complete)[-1]["response"]["output"]
    assert [item["type"] for item in output] == kinds
    statuses = [item["status"] for item in output]
    assert statuses == ["completed"] * (len(output) - 1) + ["completed" if complete else "incomplete"] * bool(output)


def test_what_was_cut_is_incomplete() -> None:
    output = stream(ANSWER[:5], complete=False)[-1]["response"]["output"]
    assert [item["status"] for item in output] == ["completed", "incomplete"]


# --- numbers ----------------------------------------------------------------------------------------------------------

texts = st.text("ab \né🙂", max_size=6)
answers = st.lists(
    st.one_of(
        # Deltas without text or reasoning give no such piece.
        st.builds(Piece, st.just(R), texts.filter(bool)),
        st.builds(Piece, st.just(T), texts.filter(bool)),
        st.tuples(
            st.builds(Piece, st.just(C), call_id=st.just("c"), name=st.just("f")), st.builds(Piece, st.just(A), texts)
        ),
    ),
    max_size=8,
).map(lambda found: [piece for each in found for piece in (each if isinstance(each, tuple) else (each,))])


def told(events: Sequence[dict[str, Any]]) -> list[Any]:
    """Return what a reader knows after these events: characters by item, and all other events."""
    found: list[Any] = []
    for event in events:
        if event["type"].endswith(".delta"):
            found += [(event["item_id"], character) for character in event["delta"]]
        else:
            found.append(event)
    return found


@given(answers, st.booleans())
def test_numbers_do_not_depend_on_how_deltas_merge(pieces: list[Piece], complete: bool) -> None:
    one, other = stream(pieces, complete=complete), stream(merged(pieces), complete=complete)
    by_character = (
        [Piece(p.kind, c) for p in pieces if p.kind is not C for c in p.text]
        if C not in {p.kind for p in pieces}
        else pieces
    )
    assert told(one) == told(other) == told(stream(by_character, complete=complete))
    numbers = {event["sequence_number"]: event["type"] for event in one}
    assert len(numbers) == len(one)
    for event in other:
        # Every event of the merged stream ends where one of the other stream does.
        assert numbers[event["sequence_number"]] == event["type"]


@given(answers, st.booleans(), st.data())
def test_a_stream_goes_on_behind_any_number_at_any_router(
    pieces: list[Piece], complete: bool, data: st.DataObject
) -> None:
    events = stream(pieces, complete=complete)
    read = data.draw(st.integers(0, len(events)))
    after = events[read - 1]["sequence_number"] if read else FROM_THE_BEGINNING
    for there in (pieces, merged(pieces)):
        rest = stream(there, after=after, complete=complete)
        assert told([*events[:read], *rest]) == told(events)
        assert all(event["sequence_number"] > after for event in rest)


@pytest.mark.parametrize("status", ["failed", "incomplete"])
def test_a_reader_who_has_more_than_what_is_left_is_told_of_the_end(status: str) -> None:
    last = stream([Piece(T, "What the reader has.")])[-2]["sequence_number"]
    left = Events(ID, BASE, after=last)
    assert left.begin(queued=False) + left.started() + left.end(complete=False) == ""
    assert f'"type":"response.{status}"' in left.final(left.response(status))


def test_a_failure_is_told_to_a_reader_whose_number_is_that_of_the_end() -> None:
    for after in range(4):
        left = Events(ID, BASE, after=after)
        left.begin(queued=False)
        left.started()
        assert '"type":"response.failed"' in left.final(left.response("failed"))


@given(st.lists(texts, max_size=8), st.integers(-1, 20))
def test_the_fast_way_of_a_text_writes_the_same(said: list[str], after: int) -> None:
    fast, plain = Events(ID, BASE, after), Events(ID, BASE, after)
    assert [fast.text(text) for text in said] == [plain.add(Piece(T, text)) for text in said]
    assert (fast.end(complete=True), fast.output) == (plain.end(complete=True), plain.output)


@given(answers, st.booleans())
def test_a_stored_answer_is_told_as_it_was(pieces: list[Piece], complete: bool) -> None:
    events = stream(pieces, complete=complete)
    again = stream(list(pieces_of_items(events[-1]["response"]["output"])), complete=complete)
    assert told(again) == told(events)
    assert again[-1] == events[-1]


def test_white_space_between_calls_is_the_same_when_deltas_merge() -> None:
    first, second = (
        [Piece(C, call_id="c1", name="f"), Piece(A, "{}")],
        [Piece(C, call_id="c2", name="f"), Piece(A, "{}")],
    )
    one_by_one = stream([Piece(T, "Look."), Piece(T, "\n"), *first, Piece(T, "\n"), *second])
    together = stream([Piece(T, "Look.\n\n"), *first, *second])
    assert told(one_by_one) == told(together)
    assert together[-1]["response"]["output"][0]["content"][0]["text"] == "Look."


# --- pieces -----------------------------------------------------------------------------------------------------------


def test_a_delta_has_its_pieces_in_the_order_of_models() -> None:
    call = types.ToolCallDelta(index=0, id="call_1", name="f", arguments="{")
    delta = api.Delta(reasoning="r", text="t", tool_calls=[call, types.ToolCallDelta(index=0, arguments="}")])
    found = [Piece(R, "r"), Piece(T, "t"), Piece(C, call_id="call_1", name="f"), Piece(A, "{"), Piece(A, "}")]
    assert list(pieces_of(delta)) == found


def test_what_ends_a_call_belongs_to_it_though_text_comes_with_it() -> None:
    """On a busy router, one delta has the end of a call, what follows it, and the next call."""
    begin = api.Delta(tool_calls=[types.ToolCallDelta(index=0, id="call_1", name="f", arguments='{"x":')])
    more = [types.ToolCallDelta(index=0, arguments="1}"), types.ToolCallDelta(index=1, id="call_2", name="f")]
    pieces = [*pieces_of(begin), *pieces_of(api.Delta(text="And", tool_calls=more))]
    output = stream(pieces)[-1]["response"]["output"]
    assert [each["type"] for each in output] == ["function_call", "message", "function_call"]
    assert ('{"x":1}', "And") == (output[0]["arguments"], output[1]["content"][0]["text"])


@given(answers)
def test_pieces_are_packed_and_unpacked(pieces: list[Piece]) -> None:
    assert merged(unpack_pieces(pack_pieces(pieces))) == merged(pieces)


REASONED = [
    ("", "<think>"),
    ("r", "So "),
    ("r", "42"),
    ("", "</think>"),
    ("t", "4"),
    ("t", "2 \n"),
    ("t", "m"),
    ("t", "x"),
]
CALLED = [("", "<tool_call>"), ("c", '{"x": 42}'), ("", "<|end|>")]


def delta_of(tokens: Sequence[tuple[str, str]]) -> api.Delta:
    """Return the delta of tokens that are reasoning (r), text (t), arguments (c) or nothing."""
    delta = api.Delta(
        text="".join(text for kind, text in tokens if kind == "t"),
        reasoning="".join(text for kind, text in tokens if kind == "r"),
    )
    for kind, text in tokens:
        delta.logprobs.add(chosen=types.TokenLogprob(token_bytes=text.encode()))
        if kind == "c":
            delta.tool_calls.add(id="c", name="f", arguments=text)
    return delta


@pytest.mark.parametrize("tokens", [REASONED, REASONED + CALLED])
def test_text_has_the_log_probabilities_of_its_own_tokens(tokens: list[tuple[str, str]]) -> None:
    ways = [list(map(len, each)) for each in ([tokens], [tokens[:3], tokens[3:]], [tokens[:5], tokens[5:]])]
    for sizes in (*ways, [1] * len(tokens), [2] * len(tokens), [3] * len(tokens)):
        left, pieces = list(tokens), list[Piece]()
        for size in sizes:
            pieces += pieces_of(delta_of(left[:size]))
            left = left[size:]
        for made in (pieces, merged(pieces)):
            events = Events(ID, BASE)
            for piece in made:
                events.add(piece)
            events.end(complete=True)
            part = next(each for each in events.output if each["type"] == "message")["content"][0]
            assert part["text"].startswith("42")
            assert [each["token"] for each in part["logprobs"]] == [text for kind, text in tokens if kind == "t"]


def test_output_goes_on_only_from_its_own_beginning() -> None:
    old = merged(ANSWER[:5])
    assert goes_on(old, merged(ANSWER)) is True
    assert goes_on(old, old) is True
    assert goes_on([], merged(ANSWER)) is True
    assert goes_on(old, merged(ANSWER[:4])) is None
    assert goes_on(old, []) is None
    assert goes_on(old, merged([*ANSWER[:2], Piece(T, "Let")])) is False
    assert goes_on(old, merged([*ANSWER[:2], ANSWER[5]])) is False
    assert goes_on(merged(ANSWER[:8]), merged(ANSWER[:6])) is None


@given(answers, answers)
def test_every_beginning_goes_on(pieces: list[Piece], more: list[Piece]) -> None:
    assert goes_on(merged(pieces), merged([*pieces, *more])) is True
    assert goes_on(merged([*pieces, *more]), merged(pieces)) in (None, True)
