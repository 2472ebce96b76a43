"""The output log: offsets, re-attach, and what a frame carries."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.models import PromptLogprobs, ResumeRecord, SequenceEnd
from deployments.replica.attempts import AttemptTable
from deployments.replica.links import frames
from deployments.replica.links.frames import MAX_FRAME_TOKENS, MAX_PROMPT_LOGPROBS, fill_frame
from deployments.replica.links.session import LinkSession
from deployments.replica.output_log import OutputLog
from penstock.internal.v1 import replica_pb2 as pb
from penstock.models import FinishReason, OutputParsing, ParsedDelta, PositionLogprobs, TokenLogprob


class Outlet:
    """Remembers what was marked."""

    def __init__(self) -> None:
        self.marked: list[OutputLog] = []
        self.detached: list[int] = []

    def mark(self, log: OutputLog) -> None:
        self.marked.append(log)

    def detach(self, sink: int) -> None:
        self.detached.append(sink)

    def frame(self) -> pb.LinkResponse:
        """Fill one frame with everything that was marked."""
        frame = pb.LinkResponse()
        marked, self.marked = self.marked, []
        self.marked.extend(fill_frame(frame, marked, self))
        return frame


def make_log() -> OutputLog:
    return OutputLog("r", "a", lambda _log, _ended: None)


def deltas(frame: pb.LinkResponse) -> list[tuple[int, int, list[int], str]]:
    tokens, at, out = list(frame.token_ids), 0, []
    for sink, offset, count, text in zip(frame.sinks, frame.offsets, frame.token_counts, frame.texts, strict=True):
        out.append((sink, offset, tokens[at : at + count], text))
        at += count
    return out


class Marks:
    """Parser to which text in brackets is reasoning."""

    short_call_ids = False

    def feed(self, token_ids: Sequence[int], text: str, *, last: bool = False) -> ParsedDelta | None:
        if text.startswith("("):
            return ParsedDelta(reasoning=text[1:-1])
        return ParsedDelta(text) if text else None

    def reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        return 0


@pytest.mark.parametrize("reads", [True, False])
def test_parsed_output_that_is_its_text_is_not_sent_twice_to_routers_that_know(reads: bool) -> None:
    outlet, frame = Outlet(), pb.LinkResponse()
    logs = []
    for sink, text in enumerate(("a", "(b)", "", "c")):
        log = OutputLog("r", f"a{sink}", lambda _log, _ended: None, parsing=OutputParsing())
        log.on_parser(Marks())
        log.attach(outlet, sink, 0)
        log.on_tokens([5], text, None)
        logs.append(log)

    assert not fill_frame(frame, logs, outlet, text_deltas=reads)

    parsed = {each.delta: (each.text, each.reasoning) for each in frame.parsed}
    whole = {0: ("a", ""), 1: ("", "b"), 3: ("c", "")}
    assert (({1: ("", "b")}, [0, 3]) if reads else (whole, [])) == (parsed, list(frame.text_deltas))


def test_the_end_of_parsed_output_may_come_alone() -> None:
    outlet = Outlet()
    log = OutputLog("r", "a", lambda _log, _ended: None, parsing=OutputParsing())
    log.on_parser(Marks())
    log.attach(outlet, 1, 0)
    log.on_tokens([5], "a", None)
    outlet.frame()
    log.on_end(SequenceEnd(FinishReason.LENGTH, output_tokens=1))

    frame = outlet.frame()

    assert ([], 1) == (list(frame.sinks), len(frame.ends))


def test_one_entry_becomes_one_delta() -> None:
    outlet, log = Outlet(), make_log()
    log.attach(outlet, 7, 0)
    log.on_tokens([5], "a", None)

    assert [(7, 0, [5], "a")] == deltas(outlet.frame())


def test_entries_of_a_slow_router_merge_into_one_delta() -> None:
    outlet, log = Outlet(), make_log()
    log.attach(outlet, 7, 0)
    log.on_tokens([5], "a", None)
    log.on_tokens([6, 7], "", None)
    log.on_tokens([8], "bc", None)

    assert [(7, 0, [5, 6, 7, 8], "abc")] == deltas(outlet.frame())


def test_a_log_is_marked_once_however_much_is_new() -> None:
    outlet, log = Outlet(), make_log()
    log.attach(outlet, 1, 0)
    for token in range(100):
        log.on_tokens([token], "x", None)

    assert [log] == outlet.marked


def test_logprobs_of_merged_entries_stay_in_order() -> None:
    outlet, log = Outlet(), make_log()
    log.attach(outlet, 1, 0)
    for token in (3, 4):
        log.on_tokens([token], "", [PositionLogprobs(TokenLogprob(token, -0.5))])

    [item] = outlet.frame().logprobs
    assert [3, 4] == [position.chosen.token_id for position in item.positions]


def prompt_of(tokens: int, width: int = 2) -> PromptLogprobs:
    rows = tokens - 1
    ids = array("I", range(rows * width))
    return PromptLogprobs(width, ids, array("f", (-float(each) for each in ids)), array("I", [1] * rows))


def log_with_prompt(resume: ResumeRecord | None = None) -> OutputLog:
    return OutputLog("r", "a", lambda _log, _ended: None, resume, prompt_logprobs=True)


def test_log_probabilities_of_the_prompt_go_once_before_the_first_delta() -> None:
    outlet, log = Outlet(), log_with_prompt()
    log.attach(outlet, 7, 0)
    log.on_prompt_logprobs(prompt_of(4))
    assert [] == outlet.marked
    log.on_tokens([5], "a", None)
    frame = outlet.frame()
    [part] = frame.prompts
    assert (7, 0, 2, [0, 1, 2, 3, 4, 5], [1, 1, 1]) == (
        part.sink, part.first, part.width, list(part.token_ids), list(part.ranks)
    )  # fmt: skip
    assert [0.0, -1.0, -2.0, -3.0, -4.0, -5.0] == list(part.logprobs)
    assert [(7, 0, [5], "a")] == deltas(frame)
    log.on_tokens([6], "b", None)
    assert [] == list(outlet.frame().prompts)


def test_those_of_a_long_prompt_come_in_parts_and_output_waits_for_the_last() -> None:
    outlet, log, other = Outlet(), log_with_prompt(), make_log()
    log.attach(outlet, 7, 0)
    other.attach(outlet, 8, 0)
    prompt = prompt_of(MAX_PROMPT_LOGPROBS + 10)
    log.on_prompt_logprobs(prompt)
    log.on_tokens([5], "a", None)
    other.on_tokens([6], "b", None)
    frames = [outlet.frame()]
    # Nobody else waits for it.
    assert [8] == list(frames[0].sinks)
    while outlet.marked:
        frames.append(outlet.frame())
    assert 3 == len(frames)
    assert [[], [], [7]] == [[sink for sink in frame.sinks if sink == 7] for frame in frames]
    parts = [part for frame in frames for part in frame.prompts]
    assert all(len(part.token_ids) <= MAX_PROMPT_LOGPROBS for part in parts)
    assert list(prompt.token_ids) == [each for part in parts for each in part.token_ids]
    assert [0, MAX_PROMPT_LOGPROBS // 2, MAX_PROMPT_LOGPROBS] == [part.first for part in parts]


def test_a_receiver_that_has_output_has_those_of_the_prompt() -> None:
    log = log_with_prompt()
    log.on_prompt_logprobs(prompt_of(3))
    log.on_tokens([5], "a", None)
    log.on_tokens([6], "b", None)
    for offset, parts in ((0, 1), (1, 0), (0, 1)):
        outlet = Outlet()
        log.attach(outlet, 1, offset)
        assert parts == len(outlet.frame().prompts)


def test_a_prompt_of_one_token_has_an_empty_part() -> None:
    outlet, log = Outlet(), log_with_prompt()
    log.attach(outlet, 1, 0)
    log.on_prompt_logprobs(prompt_of(1))
    log.on_tokens([5], "a", None)
    frame = outlet.frame()
    assert [0] == [len(part.ranks) for part in frame.prompts]
    assert [1] == list(frame.sinks)


def test_after_a_resume_they_go_only_to_a_receiver_that_has_no_output() -> None:
    log = log_with_prompt(ResumeRecord((1, 2), 2, "digest", prior_text="ab"))
    outlet = Outlet()
    log.outlet, log.sink = outlet, 1
    log.on_prompt_logprobs(prompt_of(3))
    log.on_tokens([5], "c", None)
    frame = outlet.frame()
    assert ([], [5]) == (list(frame.prompts), list(frame.token_ids))

    late = log_with_prompt(ResumeRecord((1, 2), 2, "digest", prior_text="ab"))
    late.attach(outlet, 2, 0)
    # The earlier output waits for the engine to compute the prompt again.
    assert [] == outlet.marked
    late.on_prompt_logprobs(prompt_of(3))
    late.on_tokens([5], "c", None)
    frame = outlet.frame()
    assert ([2], [1, 2, 5]) == ([part.sink for part in frame.prompts], list(frame.token_ids))


def test_an_end_without_output_does_not_wait_for_them() -> None:
    outlet, log = Outlet(), log_with_prompt()
    log.attach(outlet, 1, 0)
    log.on_end(SequenceEnd(FinishReason.ERROR))
    assert 1 == len(outlet.frame().ends)


@pytest.mark.slow
@pytest.mark.parametrize("alternatives", [None, 20])
def test_a_long_log_leaves_in_several_frames(alternatives: int | None) -> None:
    """A receiver may come back for all of a long output; one frame with it would pass the bound on gRPC's messages."""
    outlet, log = Outlet(), make_log()
    top = None if alternatives is None else tuple(TokenLogprob(token, -1.0) for token in range(alternatives))
    each = 1 if top is None else 2 + len(top)
    tokens = 5 * MAX_FRAME_TOKENS // (2 * each)
    for token in range(tokens):
        log.on_tokens([token], "x", None if top is None else [PositionLogprobs(TokenLogprob(token, -0.5), top)])
    log.on_end(SequenceEnd(FinishReason.LENGTH, output_tokens=tokens))
    log.attach(outlet, 1, 0)

    frames = [outlet.frame() for _ in range(3)]
    assert list(range(tokens)) == [token for frame in frames for token in frame.token_ids]
    assert [0, len(frames[0].token_ids)] == [frame.offsets[0] for frame in frames[:2]]
    assert [0, 0, 1] == [len(frame.ends) for frame in frames]
    assert [] == outlet.marked
    positions = [p.chosen.token_id for frame in frames for item in frame.logprobs for p in item.positions]
    assert positions == ([] if top is None else list(range(tokens)))


def test_logs_share_a_frame_until_it_is_full() -> None:
    outlet, logs = Outlet(), [make_log() for _ in range(3)]
    for sink, log in enumerate(logs):
        log.on_tokens([1] * (MAX_FRAME_TOKENS - 1), "x", None)
        log.on_tokens([2], "y", None)
        log.attach(outlet, sink, 0)
    logs[0].attach(outlet, 0, MAX_FRAME_TOKENS - 1)

    assert [0, 1] == list(outlet.frame().sinks)
    assert [1, 2] == list(outlet.frame().sinks)
    assert [2] == list(outlet.frame().sinks)
    assert [] == list(outlet.frame().sinks)


def test_the_end_travels_after_the_last_delta() -> None:
    outlet, log = Outlet(), make_log()
    log.attach(outlet, 1, 0)
    log.on_tokens([3], "x", None)
    log.on_end(SequenceEnd(FinishReason.STOP, output_tokens=1))

    frame = outlet.frame()
    assert 1 == len(frame.sinks)
    assert [1] == [end.output_tokens for end in frame.ends]


def test_an_old_outlet_sends_nothing_after_a_takeover() -> None:
    old, new, log = Outlet(), Outlet(), make_log()
    log.attach(old, 1, 0)
    log.on_tokens([3], "x", None)
    log.attach(new, 9, 0)

    assert [] == deltas(old.frame())
    assert [(9, 0, [3], "x")] == deltas(new.frame())


def test_an_offset_inside_a_delta_is_refused_and_changes_nothing() -> None:
    outlet, other, log = Outlet(), Outlet(), make_log()
    log.attach(outlet, 1, 0)
    log.on_tokens([3, 4, 5], "x", None)

    assert not log.attach(other, 2, 2)
    assert [(1, 0, [3, 4, 5], "x")] == deltas(outlet.frame())


def test_text_released_by_the_end_is_sent_again_to_a_receiver_that_lacks_only_it() -> None:
    outlet, log = Outlet(), make_log()
    log.on_tokens([3, 4], "ab", None)
    log.on_tokens([], "held back", None)
    log.on_end(SequenceEnd(FinishReason.LENGTH, output_tokens=2))
    assert log.attach(outlet, 1, 2)

    frame = outlet.frame()
    assert [(1, 2, [], "held back")] == deltas(frame)
    assert 1 == len(frame.ends)


entries = st.lists(
    st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.text(max_size=3)), min_size=1, max_size=12
)


@pytest.mark.slow
@given(entries, st.data())
def test_any_cut_and_reattach_gives_every_token_and_character_once(
    items: list[tuple[list[int], str]], data: st.DataObject
) -> None:
    """A receiver that re-attaches at what it got sees exactly what an undisturbed one sees."""
    log, outlet = make_log(), Outlet()
    log.attach(outlet, 0, 0)
    got_ids: list[int] = []
    got_text = ""
    for number, (ids, text) in enumerate(items, start=1):
        log.on_tokens(ids, text, None)
        if data.draw(st.booleans()):
            for _sink, offset, some, words in deltas(outlet.frame()):
                assert offset == len(got_ids)
                got_ids.extend(some)
                got_text += words
        if data.draw(st.booleans()):
            outlet = Outlet()
            assert log.attach(outlet, number, len(got_ids))
    log.on_end(SequenceEnd(FinishReason.STOP))
    for _sink, _offset, some, words in deltas(outlet.frame()):
        got_ids.extend(some)
        got_text += words

    assert [token for ids, _ in items for token in ids] == got_ids
    assert "".join(text for _, text in items) == got_text


class NarrowWire:
    """Connection that every frame fills."""

    def __init__(self) -> None:
        self.session: LinkSession | None = None
        self.frames: list[pb.LinkResponse] = []

    def write(self, frame: pb.LinkResponse) -> None:
        self.frames.append(frame)
        assert self.session is not None
        self.session.pause()

    def hold(self) -> None: ...

    def go_on(self) -> None: ...

    def break_off(self, failure: Exception) -> None:
        raise failure


async def test_last_words_leave_although_each_frame_fills_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_TOKENS", 1)
    wire = NarrowWire()
    session = wire.session = LinkSession(cast(AttemptTable, None), "router-x", wire)
    for sink in range(3):
        log = make_log()
        log.attach(session, sink, 0)
        log.on_tokens([sink], "x", None)
    session.flush()
    assert [[0], [1], [2]] == [list(frame.token_ids) for frame in wire.frames]
    await session.close()
