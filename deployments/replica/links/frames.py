"""Frames made from logs that have something new."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cluster.models import SequenceEnd
from cluster.wire.output_parsing import parsed_to_wire
from deployments.engines.pieces import joined
from deployments.replica.output_log import Entry, Outlet, OutputLog
from penstock.internal.v1 import replica_pb2 as pb
from penstock.models import FinishReason, ParsedDelta, PositionLogprobs
from penstock.wire import finish_reason_to_wire, logprobs_to_wire

MAX_FRAME_TOKENS = 65_536
"""Most tokens of a frame. Each log probability counts as one more, and so does each `_BYTES_PER_TOKEN` of vectors. One
entry may exceed the bound.

The bound keeps a frame far below gRPC's message limit. It also keeps the loop free for other streams.
"""

MAX_PROMPT_LOGPROBS = 4_096
"""Most log probabilities of prompts in a frame; one row may exceed the bound. A router needs some milliseconds for so
many, in which its other streams wait.
"""


_BYTES_PER_TOKEN = 64


def fill_frame(
    frame: pb.LinkResponse, logs: Iterable[OutputLog], outlet: Outlet, *, text_deltas: bool = True
) -> list[OutputLog]:
    """Append the new output of each log to the frame and move the logs' cursors. Entries of one log become one delta.
    `text_deltas`: whether the router reads them.

    Return the logs that did not fit completely. They stay dirty.
    """
    sinks: list[int] = []
    offsets: list[int] = []
    counts: list[int] = []
    tokens: list[int] = []
    texts: list[str] = []
    left: list[OutputLog] = []
    size = 0
    for log in logs:
        if log.outlet is not outlet:
            # Another link took the log over after it was marked here.
            continue
        owes = log.tells_adapter or log.prompt_cursor is not None
        if size >= MAX_FRAME_TOKENS or (owes and not _add_first(frame, log)):
            left.append(log)
            continue
        log.parse()
        entries = log.entries
        cursor = log.cursor
        count = len(entries)
        if cursor + 1 == count:
            # The usual case: one entry since the last frame.
            offset, ids, text, logprobs = entries[cursor]
            log.cursor = count
            size += len(ids)
            if logprobs:
                size += _weight(logprobs)
                _add_logprobs(frame, len(sinks), [logprobs])
            sinks.append(log.sink)
            offsets.append(offset)
            counts.append(len(ids))
            tokens.extend(ids)
            texts.append(text)
        elif cursor < count:
            news, size = _fitting(entries, cursor, size)
            log.cursor = cursor + len(news)
            before = len(tokens)
            for entry in news:
                tokens.extend(entry[1])
            if any(entry[3] for entry in news):
                _add_logprobs(frame, len(sinks), [entry[3] or () for entry in news])
            sinks.append(log.sink)
            offsets.append(news[0][0])
            counts.append(len(tokens) - before)
            texts.append("".join([entry[2] for entry in news]))
        if log.parsed and log.cursor > cursor:
            _add_parsed(frame, len(sinks) - 1, texts[-1], log.pieces[cursor : log.cursor], text_deltas=text_deltas)
        if log.cursor < count:
            left.append(log)
            continue
        if log.end is not None:
            frame.ends.append(end_to_wire(log.sink, log.end, moved=log.moved))
            size += sum(map(len, log.end.vectors)) // _BYTES_PER_TOKEN
        log.dirty = False
    frame.sinks.extend(sinks)
    frame.offsets.extend(offsets)
    frame.token_counts.extend(counts)
    frame.token_ids.extend(tokens)
    frame.texts.extend(texts)
    return left


def _add_first(frame: pb.LinkResponse, log: OutputLog) -> bool:
    """Add what goes before the output. Return whether all of it was sent, so that output may follow."""
    if log.tells_adapter:
        frame.adapters.add(sink=log.sink, files=log.adapter_files)
        log.tells_adapter = False
    return log.prompt_cursor is None or _add_prompt(frame, log)


def _add_prompt(frame: pb.LinkResponse, log: OutputLog) -> bool:
    """Add what fits of the prompt's log probabilities. Return whether all were sent."""
    prompt, first = log.prompt, log.prompt_cursor or 0
    if prompt is None:
        # The attempt ended before its engine had them.
        log.prompt_cursor = None
        return True
    room = MAX_PROMPT_LOGPROBS - sum(len(each.token_ids) for each in frame.prompts)
    if room <= 0:
        return False
    last = min(prompt.rows, first + max(1, room // prompt.width))
    begin, end = first * prompt.width, last * prompt.width
    frame.prompts.add(
        sink=log.sink,
        first=first,
        width=prompt.width,
        token_ids=prompt.token_ids[begin:end],
        logprobs=prompt.logprobs[begin:end],
        ranks=prompt.ranks[first:last],
    )
    log.prompt_cursor = last if last < prompt.rows else None
    return log.prompt_cursor is None


def _fitting(entries: Sequence[Entry], cursor: int, size: int) -> tuple[list[Entry], int]:
    """Take entries until a frame of this size is full. Return them, and the size with them."""
    news: list[Entry] = []
    # Every entry but the last has tokens, so no more of them fit.
    for entry in entries[cursor : cursor + MAX_FRAME_TOKENS]:
        if size >= MAX_FRAME_TOKENS:
            break
        news.append(entry)
        size += len(entry[1]) + (_weight(entry[3]) if entry[3] else 0)
    return news, size


def _weight(positions: Sequence[PositionLogprobs]) -> int:
    return sum(1 + len(position.top) for position in positions)


def _add_logprobs(frame: pb.LinkResponse, delta: int, groups: Iterable[Sequence[PositionLogprobs]]) -> None:
    item = frame.logprobs.add(delta=delta)
    for group in groups:
        item.positions.extend(map(logprobs_to_wire, group))


def _add_parsed(
    frame: pb.LinkResponse, delta: int, text: str, pieces: Sequence[ParsedDelta | None], *, text_deltas: bool
) -> None:
    piece = pieces[0] if len(pieces) == 1 else joined(pieces)
    if piece is None:
        return
    if text_deltas and piece.text == text and not piece.reasoning and not piece.tool_calls:
        # Nearly every piece.
        frame.text_deltas.append(delta)
    else:
        frame.parsed.append(parsed_to_wire(delta, piece))


def end_to_wire(sink: int, end: SequenceEnd, *, moved: bool = False) -> pb.AttemptEnd:
    """Translate the end of an attempt. `moved`: it was stopped because the replica stops."""
    return pb.AttemptEnd(
        sink=sink,
        finish_reason=finish_reason_to_wire(end.reason),
        stop_match=end.stop_match,
        output_tokens=end.output_tokens,
        cached_tokens=end.cached_tokens,
        engine_wait_s=end.engine_wait_s,
        prefill_s=end.prefill_s,
        decode_s=end.decode_s,
        gpu_seconds=end.gpu_seconds,
        error=end.error,
        invalid_request=end.invalid_request,
        engine_died=end.engine_died,
        draining=moved and end.reason is FinishReason.CANCELLED,
        reasoning_tokens=end.reasoning_tokens,
        vectors=end.vectors,
    )
