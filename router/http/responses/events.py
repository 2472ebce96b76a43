"""The events of a response's stream, and its output items. Pure.

The number of an event counts what the stream says before it: one for each event that is no delta, and one for each
character of a delta. A delta has the number of its last character. So the numbers depend on the output alone: not on
how many tokens came together, which router sent them, or when. They rise, and a delta of several characters leaves
some out. A reader that has everything up to a number can be sent the rest of it, also where that number lies within
what another router sends as one delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from json.encoder import encode_basestring
from typing import Any

from router.http.compact import compact
from router.http.errors import HttpError
from router.http.responses.namespaces import names_of
from router.http.responses.pieces import Logprobs, Piece, PieceKind, behind, bytes_of, places_of

FROM_THE_BEGINNING = -1
"""Number before the first event."""
UNENDED: Mapping[str, Any] = {
    "output": [],
    "usage": None,
    "error": None,
    "incomplete_details": None,
    "completed_at": None,
}
"""Fields of a response that has not ended."""


def item_id(kind: str, response_id: str, index: int | str) -> str:
    """Return the id of an item. It names the response, so that a later request can refer to the item alone."""
    return f"{kind}_{response_id.removeprefix('resp_')}_{index}"


@dataclass(slots=True)
class _Item:
    """An item that the model writes."""

    index: int
    kind: str
    id: str
    call_id: str = ""
    name: str = ""
    namespace: str = ""
    texts: list[str] = field(default_factory=list)
    logprobs: list[Mapping[str, Any]] = field(default_factory=list)

    def part(self, text: str) -> dict[str, Any]:
        """Return the item's content part."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self.logprobs if text else []}

    def object(self, status: str) -> dict[str, Any]:
        """Return the item; its content is empty while it is in progress."""
        said, begins = "".join(self.texts), status == "in_progress"
        match self.kind:
            case "function_call":
                call = {"call_id": self.call_id, "name": self.name, "arguments": said}
                space = {"namespace": self.namespace} if self.namespace else {}
                return {"id": self.id, "type": "function_call", "status": status, **call, **space}
            case "reasoning":
                content = [] if begins else [self.part(said)]
                return {"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": content}
            case _:
                content = [] if begins else [self.part(said)]
                return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}


_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_DELTAS = {
    "reasoning": "response.reasoning_text.delta",
    "message": "response.output_text.delta",
    "function_call": "response.function_call_arguments.delta",
}
_KINDS = {PieceKind.REASONING: "reasoning", PieceKind.TEXT: "message"}


class Events:
    """Writer of one stream's events. It also collects the output items, for those that need no events.

    White space before a tool call belongs to no item, nor does that between two calls: where it was is known only while
    tokens come one by one. White space within a text is told with what follows it.
    """

    def __init__(self, response_id: str, base: Mapping[str, Any], after: int = FROM_THE_BEGINNING) -> None:
        """Begin.

        Args:
            response_id: id of the response.
            base: fields of the response that do not change.
            after: number of the last event that the reader has; only what follows it is written.
        """
        self.output: list[dict[str, Any]] = []
        """Items that have ended."""
        self._response_id = response_id
        self._base = base
        self._names = names_of(base.get("tools", ()))
        self._after = after
        self._next = 0
        """Number of the next event, or of the next character."""
        self._item: _Item | None = None
        self._held: list[Piece] = []
        """White space of which it is not known yet whether it belongs to an item."""
        self._late: Logprobs = ()
        """Log probabilities of tokens that belong to no text yet."""
        self._ahead = b""
        """What the last token with log probabilities has beyond the text so far."""
        self._head = ""
        """Beginning of a delta of the open item."""
        self._begun = False

    @property
    def last(self) -> int:
        """Number up to which everything was written."""
        return self._next - 1

    # --- life of the response -----------------------------------------------------------------------------------------

    def begin(self, *, queued: bool) -> str:
        """Write the first events; `queued` for a response in the background. Empty from the second call on."""
        if self._begun:
            return ""
        self._begun = True
        first = "queued" if queued else "in_progress"
        lines = self._life("response.created", self.response(first))
        return lines + self._life("response.queued", self.response(first)) if queued else lines

    def started(self) -> str:
        """Write that the response has left the queue."""
        return self._life("response.in_progress", self.response("in_progress"))

    def final(self, response: Mapping[str, Any]) -> str:
        """Write the last event: the response as it has ended."""
        status = str(response["status"])
        # There is no event of a cancelled response.
        kind = status if status in ("completed", "failed", "incomplete") else "incomplete"
        if self._next < self._after or (status == "failed" and self._next == self._after):
            # A reader who has more than what is left of the output is told of the end all the same.
            self._next = self._after + 1
        return self._life(f"response.{kind}", response)

    def failed(self, error: HttpError) -> str:
        """Write the error of a stream that can't go on. The response may."""
        return error_event(error, self.last)

    def response(self, status: str, **more: Any) -> dict[str, Any]:
        """Return the response with a status and what else is known."""
        return {**self._base, "status": status, **more}

    def _life(self, kind: str, response: Mapping[str, Any]) -> str:
        number = self._count()
        return "" if number <= self._after else _event(kind, f'"response":{compact(response)}', number)

    # --- output -------------------------------------------------------------------------------------------------------

    def add(self, piece: Piece) -> str:
        """Write the events of a piece."""
        item = self._item
        match piece.kind:
            case PieceKind.CALL:
                self._held = []
                lines = self._close("completed")
                return lines + self._open("function_call", piece)[1]
            case PieceKind.ARGUMENTS:
                return "" if item is None else self._delta(item, piece)
        kind, held = _KINDS[piece.kind], [each for each in self._held if each.kind is piece.kind]
        body = piece.text.rstrip()
        if not body:
            self._held = [*held, piece]
            return ""
        self._held = [Piece(piece.kind, piece.text[len(body) :])] if len(body) < len(piece.text) else []
        said = _joined([*held, replace(piece, text=body)])
        if item is not None and item.kind == kind:
            return self._delta(item, said)
        lines = self._close("completed")
        item, opened = self._open(kind)
        return lines + opened + self._delta(item, said)

    def text(self, text: str) -> str:
        """Write the events of a text without log probabilities; as `add`, and fast in the middle of a message."""
        item, first = self._item, self._next
        if (
            item is None
            or item.kind != "message"
            or self._held
            or self._late
            or first <= self._after
            or not text
            or text[-1].isspace()
        ):
            return self.add(Piece(PieceKind.TEXT, text))
        item.texts.append(text)
        self._next = first + len(text)
        return f'{self._head}{encode_basestring(text)},"logprobs":[],"sequence_number":{self._next - 1}}}\n\n'

    def end(self, *, complete: bool) -> str:
        """Write the ends of all items. `complete`: the model came to an end by itself."""
        held, self._held, item = self._held, [], self._item
        kinds = {each["type"] for each in self.output} | ({item.kind} if item is not None else set())
        lines = ""
        if complete and kinds <= {"reasoning"}:
            # Every complete answer without a call has a message, although the model may have written none.
            lines = self._close("completed")
            item, opened = self._open("message")
            lines += opened
        if item is not None and (left := [each for each in held if _KINDS[each.kind] == item.kind]):
            lines += self._delta(item, _joined(left))
        return lines + self._close("completed" if complete else "incomplete")

    def _open(self, kind: str, call: Piece | None = None) -> tuple[_Item, str]:
        index = len(self.output)
        item = _Item(index, kind, item_id(_PREFIXES[kind], self._response_id, index))
        if call is not None:
            item.call_id = call.call_id
            item.namespace, item.name = self._names.get(call.name, ("", call.name))
        self._item, self._late, self._ahead = item, (), b""
        delta, where = _DELTAS[kind], f'"item_id":{compact(item.id)},"output_index":{index}'
        added = f'"output_index":{index},"item":{compact(item.object("in_progress"))}'
        lines = self._said("response.output_item.added", added)
        if kind != "function_call":
            where += ',"content_index":0'
            lines += self._said("response.content_part.added", f'{where},"part":{compact(item.part(""))}')
        self._head = f'event: {delta}\ndata: {{"type":"{delta}",{where},"delta":'
        return item, lines

    def _delta(self, item: _Item, piece: Piece) -> str:
        text = piece.text
        logprobs = (
            self._own(text, [*self._late, *piece.logprobs]) if piece.logprobs or self._late or self._ahead else ()
        )
        if not text:
            return ""
        item.logprobs.extend(logprobs)
        item.texts.append(text)
        first, self._next = self._next, self._next + len(text)
        if self._next - 1 <= self._after:
            return ""
        if first <= self._after:
            # The reader has a part of it.
            known = self._after + 1 - first
            logprobs, text = behind(text, known, logprobs), text[known:]
        more = f',"logprobs":{compact(logprobs)}' if item.kind == "message" else ""
        return f'{self._head}{encode_basestring(text)}{more},"sequence_number":{self._next - 1}}}\n\n'

    def _own(self, text: str, tokens: Logprobs) -> Logprobs:
        """Return the log probabilities of new text. `tokens` also has those around it: the end of the reasoning, the
        beginning of a call, the model's end, and what is held back.
        """
        wanted, ahead, self._late = text.encode(), self._ahead, tokens
        if ahead.startswith(wanted):
            self._ahead = ahead[len(wanted) :]
            return ()
        self._ahead, wanted = b"", wanted.removeprefix(ahead)
        # Where the text is not that of the tokens, all of them are told.
        begin, end = places_of(wanted, tokens) or (0, len(tokens))
        own, self._late = tokens[begin:end], tokens[end:]
        self._ahead = bytes_of(own).partition(wanted)[2]
        return own

    def _close(self, status: str) -> str:
        item, self._item = self._item, None
        if item is None:
            return ""
        found = item.object(status)
        self.output.append(found)
        said = "".join(item.texts)
        where = f'"item_id":{compact(item.id)},"output_index":{item.index}'
        if item.kind == "function_call":
            arguments = f'{where},"name":{compact(item.name)},"arguments":{compact(said)}'
            lines = self._said("response.function_call_arguments.done", arguments)
        else:
            where += ',"content_index":0'
            more = f',"logprobs":{compact(item.logprobs)}' if item.kind == "message" else ""
            done = _DELTAS[item.kind].replace(".delta", ".done")
            lines = self._said(done, f'{where},"text":{compact(said)}{more}')
            lines += self._said("response.content_part.done", f'{where},"part":{compact(item.part(said))}')
        return lines + self._said("response.output_item.done", f'"output_index":{item.index},"item":{compact(found)}')

    def _said(self, kind: str, body: str) -> str:
        number = self._count()
        return "" if number <= self._after else _event(kind, body, number)

    def _count(self) -> int:
        number, self._next = self._next, self._next + 1
        return number


def error_event(error: HttpError, last: int) -> str:
    """Return the event of a stream that can't go on. It has the number of the last event before it, so that a reader
    who comes back gets all that follows.
    """
    fields = {"code": error.code, "message": error.message, "param": None, **error.again()}
    return _event("error", compact(fields)[1:-1], max(0, last))


def _joined(pieces: Sequence[Piece]) -> Piece:
    """Return pieces of one kind as one."""
    if len(pieces) == 1:
        return pieces[0]
    logprobs = [each for piece in pieces for each in piece.logprobs]
    return Piece(pieces[0].kind, "".join([piece.text for piece in pieces]), logprobs=logprobs)


def _event(kind: str, body: str, number: int) -> str:
    return f'event: {kind}\ndata: {{"type":"{kind}",{body},"sequence_number":{number}}}\n\n'
