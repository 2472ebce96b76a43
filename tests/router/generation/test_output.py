"""What a choice has produced: what goes straight through, what waits, and what another call takes over."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest

from cluster.errors import InvalidRequestError
from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.generation.output import Output


def add(output: Output, *token_ids: int, logprobs: Sequence[types.PositionLogprobs] = (), plain: bool = True) -> bool:
    return output.add(token_ids, "".join(f"<{each}>" for each in token_ids), logprobs, plain=plain)


def written_through(output: Output, *, takes: bool = True) -> list[tuple[int, list[int], str]]:
    written: list[tuple[int, list[int], str]] = []

    def through(offset: int, token_ids: Sequence[int], text: str, _parsed: pb.DeltaParsed | None) -> bool:
        if takes:
            written.append((offset, list(token_ids), text))
        return takes

    output.through = through
    return written


def test_plain_output_leaves_at_once_and_is_remembered() -> None:
    output = Output(0, logprobs=False)
    written = written_through(output)
    assert not add(output, 7, 8)
    assert not add(output, 9)
    assert [(0, [7, 8], "<7><8>"), (2, [9], "<9>")] == written
    assert (3, 0) == (output.tokens, output.pending_tokens)
    assert [7, 8, 9] == list(output.history.token_ids)
    assert output.known


@pytest.mark.parametrize("reason", ["nobody takes it", "something else comes first", "log probabilities", "a line"])
def test_what_can_not_leave_at_once_waits(reason: str) -> None:
    output = Output(0, logprobs=False)
    if reason == "a line":
        add(output, 1)
    written = written_through(output, takes=reason != "nobody takes it")
    logprobs = [types.PositionLogprobs()] if reason == "log probabilities" else ()
    assert add(output, 7, logprobs=logprobs, plain=reason != "something else comes first")
    assert [] == written
    assert output.pending


def test_what_waits_is_taken_as_one_event_with_its_offset() -> None:
    output = Output(2, logprobs=False)
    written = written_through(output)
    add(output, 1)
    output.through = None
    add(output, 7)
    add(output, 8)
    delta = output.take().delta
    assert (2, 1, [7, 8], "<7><8>") == (delta.choice_index, delta.offset, list(delta.token_ids), delta.text)
    assert [(0, [1], "<1>")] == written
    assert not output.pending


def test_who_attaches_late_knows_all_once_it_is_told_what_came_before() -> None:
    output = Output(0, logprobs=False)
    output.tokens = 2
    assert not output.known
    output.remember(pb.History(token_ids=[5, 6], text="<5><6>", delta_tokens=[1, 1], delta_characters=[3, 3]))
    assert output.known
    assert output.prefix is not None
    assert ([5, 6], "<5><6>") == (list(output.prefix.token_ids), output.prefix.text)
    add(output, 7)
    assert [5, 6, 7] == list(output.history.token_ids)


def part(first: int, *ids: int, width: int = 2) -> pb.PromptLogprobs:
    values = [-float(each) for each in ids]
    return pb.PromptLogprobs(first=first, width=width, token_ids=ids, logprobs=values, ranks=[1] * (len(ids) // width))


def chosen(positions: Sequence[types.PositionLogprobs]) -> list[tuple[int, float, bytes]]:
    return [(each.chosen.token_id, each.chosen.logprob, each.chosen.token_bytes) for each in positions]


def test_the_parts_of_a_prompts_log_probabilities_leave_with_the_first_output() -> None:
    output = Output(0, logprobs=True)
    output.expect_logprobs(1, {token: f"<{token}>".encode() for token in range(10)})
    output.add_prompt(part(0, 2, 3, 4, 5))
    output.add_prompt(part(2, 6, 7))
    written = written_through(output)
    assert not output.pending
    before = output.pending_bytes
    assert add(output, 8)
    assert [] == written
    delta = output.take().delta
    assert [(1, -9999.0, b"<1>"), (2, -2.0, b"<2>"), (4, -4.0, b"<4>"), (6, -6.0, b"<6>")] == chosen(
        delta.prompt_logprobs
    )
    assert [b"<7>"] == [each.token_bytes for each in delta.prompt_logprobs[-1].top]
    assert (0, [8], "<8>") == (delta.offset, list(delta.token_ids), delta.text)
    assert before > output.pending_bytes == 0
    # Only once.
    add(output, 9)
    output.add_prompt(part(0, 2, 3))
    assert [(1, [9], "<9>")] == written
    assert not output.pending


def test_a_link_that_broke_in_a_prompt_begins_it_anew() -> None:
    output = Output(0, logprobs=True)
    output.expect_logprobs(1, None)
    output.add_prompt(part(0, 2, 3))
    output.add_prompt(part(0, 2, 3, 4, 5))
    add(output, 8)
    assert [1, 2, 4] == [token for token, _, _ in chosen(output.take().delta.prompt_logprobs)]


def test_drawn_tokens_and_alternatives_get_their_texts() -> None:
    output = Output(0, logprobs=True)
    output.expect_logprobs(1, {8: b"\xf0", 9: b"y"})
    top = [types.TokenLogprob(token_id=9, logprob=-1.0)]
    add(output, 8, logprobs=[types.PositionLogprobs(chosen=types.TokenLogprob(token_id=8), top=top)])
    [position] = output.take().delta.logprobs
    assert (b"\xf0", b"y") == (position.chosen.token_bytes, position.top[0].token_bytes)


def test_log_probabilities_are_not_remembered_so_nobody_gets_such_output_whole() -> None:
    old = Output(0, logprobs=True)
    add(old, 5)
    assert not Output(0, logprobs=True).inherits(old)
    old.remember(pb.History(token_ids=[6], text="<6>"))
    assert old.prefix is None


def test_inherited_output_goes_on_behind_what_its_client_has() -> None:
    old, new = Output(0, logprobs=False), Output(0, logprobs=False)
    for token in (5, 6, 7):
        add(old, token)
    assert new.inherits(old)
    new.skip(1)
    assert new.prefix is not None
    assert ([5], "<5>") == (list(new.prefix.token_ids), new.prefix.text)
    delta = new.take().delta
    assert (1, [6, 7], "<6><7>") == (delta.offset, list(delta.token_ids), delta.text)


def test_inherited_output_that_its_client_has_leaves_nothing_to_send() -> None:
    old, new = Output(0, logprobs=False), Output(0, logprobs=False)
    add(old, 5)
    assert new.inherits(old)
    new.skip(1)
    assert not new.pending


@pytest.mark.parametrize("tokens", [1, 4])
def test_only_the_end_of_a_delta_is_a_place_to_go_on_from(tokens: int) -> None:
    old, new = Output(0, logprobs=False), Output(0, logprobs=False)
    add(old, 5, 6)
    add(old, 7)
    assert new.inherits(old)
    with pytest.raises(InvalidRequestError, match=f"received_tokens.*got {tokens}"):
        new.skip(tokens)


def test_there_is_nothing_to_inherit_where_nothing_or_not_all_is_known() -> None:
    old = Output(0, logprobs=False)
    assert not Output(0, logprobs=False).inherits(old)
    old.tokens = 2
    add(old, 7)
    assert not Output(0, logprobs=False).inherits(old)


def test_dropped_output_takes_no_room_and_nothing_leaves_any_more() -> None:
    output = Output(0, logprobs=False)
    output.add_prompt(pb.PromptLogprobs(width=1, token_ids=[7], logprobs=[-1.0], ranks=[1]))
    alone = output.pending_bytes
    add(output, 7)
    assert 0 < alone < output.pending_bytes
    written = written_through(output)
    output.drop()
    add(output, 8)
    assert (0, []) == (output.pending_bytes, written)
    assert 2 == output.tokens


def test_a_stream_without_log_probabilities_has_no_message_for_them() -> None:
    before = messages()
    outputs = [Output(0, logprobs=False) for _ in range(20)]
    for output in outputs:
        add(output, 1)
        output.take()
    assert before == messages()


def messages() -> int:
    """Return how many messages of a stream are alive."""
    return sum(isinstance(each, api.StreamGenerateResponse) for each in gc.get_objects())
