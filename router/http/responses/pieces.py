"""Pieces of output: the order in which a model reasons, writes and calls tools. Pure."""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

import msgpack

from penstock.batch.logprobs import chat_logprobs
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.wire import logprobs_from_wire
from router.http.responses.namespaces import flat_name

Logprobs = Sequence[Mapping[str, Any]]
"""Log probabilities of tokens in the form of the Responses API."""


class PieceKind(enum.StrEnum):
    """Kind of a piece. The values are stored."""

    REASONING = "r"
    TEXT = "t"
    CALL = "c"
    """Beginning of a tool call."""
    ARGUMENTS = "a"
    """Arguments of the newest tool call."""


@dataclass(frozen=True, slots=True)
class Piece:
    """New output of one kind."""

    kind: PieceKind
    text: str = ""
    """Empty for the beginning of a call."""
    call_id: str = ""
    name: str = ""
    """Name of the tool."""
    logprobs: Logprobs = ()
    """Log probabilities of tokens, one entry each, where they were asked for. `Events` finds those of the text."""


def pieces_of(delta: api.Delta) -> Iterator[Piece]:
    """Yield the pieces of a delta, in the order in which models write them. Log probabilities belong to its text."""
    calls = list(delta.tool_calls)
    while calls and not calls[0].id:
        # They belong to the open call. What a merged delta has beside them came behind them.
        yield Piece(PieceKind.ARGUMENTS, calls.pop(0).arguments)
    if delta.reasoning:
        yield Piece(PieceKind.REASONING, delta.reasoning)
    plain = not (delta.reasoning or delta.tool_calls)
    if delta.text or (plain and delta.logprobs):
        yield Piece(PieceKind.TEXT, delta.text, logprobs=_behind(delta.reasoning, _logprobs(delta.logprobs)))
    for call in calls:
        if call.id:
            yield Piece(PieceKind.CALL, call_id=call.id, name=call.name)
        if call.arguments:
            yield Piece(PieceKind.ARGUMENTS, call.arguments)


def pieces_of_choice(choice: api.Choice, reasoning_tokens: int = 0) -> Iterator[Piece]:
    """Yield the pieces of a whole answer. `reasoning_tokens` is the number of its tokens that are reasoning, without
    those around it.
    """
    if choice.reasoning:
        yield Piece(PieceKind.REASONING, choice.reasoning)
    if choice.text:
        logprobs = _behind(choice.reasoning, _logprobs(choice.logprobs), reasoning_tokens)
        yield Piece(PieceKind.TEXT, choice.text, logprobs=logprobs)
    for call in choice.tool_calls:
        yield Piece(PieceKind.CALL, call_id=call.id, name=call.name)
        if call.arguments:
            yield Piece(PieceKind.ARGUMENTS, call.arguments)


def _logprobs(positions: Sequence[types.PositionLogprobs]) -> Logprobs:
    if not positions:
        return ()
    found = chat_logprobs(tuple(map(logprobs_from_wire, positions))) or {"content": ()}
    return [{**_whole(each), "top_logprobs": [*map(_whole, each["top_logprobs"])]} for each in found["content"]]


def _whole(token: Mapping[str, Any]) -> dict[str, Any]:
    # OpenAI's SDK wants a list here.
    return {**token, "bytes": token["bytes"] or []}


def _behind(reasoning: str, logprobs: Logprobs, tokens: int = 0) -> Logprobs:
    """Return what follows the reasoning; what follows its number of `tokens` where its text is not found."""
    if not (reasoning and logprobs):
        return logprobs
    found = places_of(reasoning.encode(), logprobs)
    return logprobs[found[1] if found is not None else tokens :]


def places_of(text: bytes, logprobs: Logprobs) -> tuple[int, int] | None:
    """Return the first token of a text and the one behind its last; None where the tokens' bytes don't have it."""
    at = bytes_of(logprobs).find(text)
    ends = list(accumulate(len(each["bytes"]) for each in logprobs))
    return None if at < 0 else (bisect_right(ends, at), bisect_left(ends, at + len(text)) + 1)


def behind(text: str, known: int, logprobs: Logprobs) -> Logprobs:
    """Return the tokens that begin behind the first `known` characters of their text."""
    joined, whole, beginning = bytes_of(logprobs), text.encode(), text[:known].encode()
    begins = accumulate((len(each["bytes"]) for each in logprobs), initial=-max(0, joined.find(whole)))
    return [each for each, begin in zip(logprobs, begins, strict=False) if begin >= len(beginning)]


def bytes_of(logprobs: Logprobs) -> bytes:
    """Return the text of tokens."""
    return bytes(chain.from_iterable(each["bytes"] for each in logprobs))


def pieces_of_items(items: Iterable[Mapping[str, Any]]) -> Iterator[Piece]:
    """Yield the pieces of output items, as they are stored."""
    for item in items:
        match item["type"]:
            case "reasoning":
                for part in item["content"]:
                    yield Piece(PieceKind.REASONING, part["text"])
            case "message":
                for part in item["content"]:
                    yield Piece(PieceKind.TEXT, part["text"], logprobs=part.get("logprobs") or ())
            case "function_call":
                name = flat_name(item.get("namespace", ""), item["name"])
                yield Piece(PieceKind.CALL, call_id=item["call_id"], name=name)
                if item["arguments"]:
                    yield Piece(PieceKind.ARGUMENTS, item["arguments"])


def pack_pieces(pieces: Iterable[Piece]) -> bytes:
    """Return pieces as bytes."""
    found = [(str(piece.kind), piece.text, piece.call_id, piece.name, list(piece.logprobs)) for piece in pieces]
    return bytes(msgpack.packb(found))


def unpack_pieces(data: bytes) -> list[Piece]:
    """Undo `pack_pieces`."""
    return [
        Piece(PieceKind(kind), text, call_id, name, tuple(logprobs))
        for kind, text, call_id, name, logprobs in msgpack.unpackb(data)
    ]


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the same output in as few pieces as possible."""
    found: list[Piece] = []
    for piece in pieces:
        if found and found[-1].kind is piece.kind and piece.kind is not PieceKind.CALL:
            last = found[-1]
            found[-1] = replace(last, text=last.text + piece.text, logprobs=(*last.logprobs, *piece.logprobs))
        else:
            found.append(piece)
    return found


def goes_on(before: Sequence[Piece], now: Sequence[Piece]) -> bool | None:
    """Return whether output goes on from earlier output; None while it is shorter and may still do so.

    Args:
        before: the earlier output, merged.
        now: the output so far, merged.
    """
    for index, old in enumerate(before):
        if index >= len(now):
            return None
        new = now[index]
        if (old.kind, old.call_id, old.name) != (new.kind, new.call_id, new.name):
            return False
        if new.text.startswith(old.text) and (index == len(before) - 1 or new.text == old.text):
            continue
        # Only the newest piece may grow.
        return None if index == len(now) - 1 and old.text.startswith(new.text) else False
    return True
