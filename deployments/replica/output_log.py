"""The output of one attempt, kept until its router reports that the client has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from cluster.models import GenerationSpec, PromptLogprobs, ResumeRecord, SequenceEnd
from deployments.engines.base import OutputParser
from deployments.engines.pieces import joined
from deployments.replica.parsed_output import ParsedOutput, TextOnly
from penstock.models import FinishReason, OutputParsing, ParsedDelta, PositionLogprobs, TokenLogprob
from penstock.wire import LOGPROB_FLOOR

Entry = tuple[int, Sequence[int], str, Sequence[PositionLogprobs] | None]
"""Offset of the first token, token ids, text that they released, log probabilities.

Only the last entries may have no tokens. They have text that was held back and that the end released.
"""
Parsed = tuple[Sequence[Entry], Sequence[ParsedDelta | None]]
"""Entries, and the parsed piece of each; no pieces where the output is not parsed."""
_COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)


class Outlet(Protocol):
    """Sender of the output of logs. There is one per link."""

    def mark(self, log: OutputLog) -> None:
        """Send the new output of a log."""
        ...

    def detach(self, sink: int) -> None:
        """Tell the receiver that another router took over its output."""
        ...


class OutputLog:
    """Token sink that keeps the output. Offsets count output tokens, so they mean the same on every link."""

    __slots__ = (
        "_asks_prompt",
        "_logprobs",
        "_on_change",
        "_output",
        "_parsing",
        "_prior",
        "adapter_files",
        "attempt",
        "begun",
        "cursor",
        "dirty",
        "end",
        "entries",
        "final",
        "moved",
        "outlet",
        "parsed",
        "pieces",
        "prompt",
        "prompt_cursor",
        "request_id",
        "sink",
        "tells_adapter",
        "tokens",
        "trace_parent",
    )

    def __init__(
        self,
        request_id: str,
        attempt: str,
        on_change: Callable[[OutputLog, bool], None],
        resume: ResumeRecord | None = None,
        *,
        logprobs: bool = False,
        parsing: OutputParsing | None = None,
        prompt_logprobs: bool = False,
    ) -> None:
        """`on_change(log, ended)` is called at the first token and at the end. `logprobs` and `prompt_logprobs`: the
        request asked for them.

        The log includes the output before a resume, for a receiver that attaches later and has less of it.
        """
        self.request_id = request_id
        self.attempt = attempt
        self.trace_parent = ""
        """As in `GenerationSpec`."""
        self.adapter_files = ""
        """Name that stands for the files of its adapter; empty without one."""
        self.tells_adapter = False
        """Whether that is to be sent on the current link."""
        self.entries: list[Entry] = []
        self.tokens = 0
        self.begun = False
        """Whether this attempt has had output."""
        self.end: SequenceEnd | None = None
        self.moved = False
        """Whether it is stopped because the replica stops. It continues on another replica then."""
        self.final = False
        """Whether it is stopped and does not continue, so that what a parser holds back is sent."""
        self.pieces: list[ParsedDelta | None] = []
        """Parsed piece of each entry, as far as entries were parsed. Entries that are parsed together become one."""
        self.outlet: Outlet | None = None
        self.sink = 0
        """Number of the receiver on the outlet's link."""
        self.cursor = 0
        """Index of the first entry that was not sent on the current link."""
        self.prompt: PromptLogprobs | None = None
        """Log probabilities of the prompt; None until the engine has them, and where nobody asked for them."""
        self.prompt_cursor: int | None = 0 if prompt_logprobs else None
        """Number of the first row of them that was not sent on the current link; None where all were sent."""
        self.dirty = False
        """Whether the outlet already knows that there is something to send."""
        self._on_change = on_change
        self._logprobs = 0
        """Number of tokens with a log probability, alternatives included."""
        if resume is not None and resume.prior_token_ids:
            self.entries.extend(_prior_entries(resume, logprobs=logprobs))
            self.tokens = len(resume.prior_token_ids)
            self.cursor = len(self.entries)
            # They came with the first token, which the client has.
            self.prompt_cursor = None
        self._prior = self.tokens
        self.parsed = parsing is not None
        """Whether the output is parsed. The client gets the pieces then, and not the text."""
        self._parsing = parsing
        self._output: ParsedOutput | None = None
        if parsing is not None:
            self.on_parser(TextOnly())
        self._asks_prompt = prompt_logprobs

    @property
    def produced(self) -> int:
        """Output tokens of this attempt alone."""
        return self.tokens - self._prior

    # --- TokenSink ----------------------------------------------------------------------------------------------------

    def on_parser(self, parser: OutputParser) -> None:
        """Parse the output from its beginning with this parser. Ignored where the output is only text."""
        if self._parsing is None:
            return
        self._output = output = ParsedOutput(parser, self._parsing, self.request_id)
        self.pieces = [output.feed(entry[1], entry[2]) for entry in self.entries]

    def on_adapter(self, files: str) -> None:
        """Keep the name of its adapter's files, and send it with the first output."""
        self.adapter_files, self.tells_adapter = files, True

    def on_prompt_logprobs(self, found: PromptLogprobs) -> None:
        """Keep the log probabilities of the prompt. They are sent before the first token."""
        self.prompt = found

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        """Append a delta. After an end, ignore everything, also from an engine that was given up and still runs."""
        if self.end is not None:
            return
        offset = self.tokens
        self.entries.append((offset, token_ids, text, logprobs))
        self.tokens = offset + len(token_ids)
        if logprobs:
            self._logprobs += sum(1 + len(position.top) for position in logprobs)
        if not self.dirty and self.outlet is not None:
            self.dirty = True
            self.outlet.mark(self)
        if token_ids and not self.begun:
            self.begun = True
            self._on_change(self, False)

    def on_end(self, end: SequenceEnd) -> None:
        """Close the log."""
        if self.end is not None:
            return
        self.end = end if self._output is None else self._parsed_end(self._output, end)
        if not self.dirty and self.outlet is not None:
            self.dirty = True
            self.outlet.mark(self)
        self._on_change(self, True)

    # --- parsing ------------------------------------------------------------------------------------------------------

    def parse(self) -> None:
        """Parse the entries that were not parsed yet, and make them one."""
        output, pieces, entries = self._output, self.pieces, self.entries
        if output is None or (news := len(entries) - len(pieces)) <= 0:
            return
        if news > 1:
            self._parse(output, last=False)
            return
        # Nearly every call.
        entry = entries[-1]
        pieces.append(output.feed(entry[1], entry[2]))

    def _parse(self, output: ParsedOutput, *, last: bool) -> None:
        done = len(self.pieces)
        news = self.entries[done:]
        # One by one: a parser would have to cut them into tokens again.
        pieces = [output.feed(entry[1], entry[2]) for entry in news]
        if last:
            pieces.append(output.feed((), "", last=True))
        piece = pieces[0] if len(pieces) == 1 else joined(pieces)
        if len(news) > 1:
            self.entries[done:] = [_merged(news)]
        elif not news:
            if piece is None:
                return
            self.entries.append((self.tokens, (), "", None))
        self.pieces.append(piece)

    def _parsed_end(self, output: ParsedOutput, end: SequenceEnd) -> SequenceEnd:
        # Output that continues elsewhere is parsed there: what is held back here may become part of a call.
        self._parse(output, last=end.reason in _COMPLETE or self.final)
        calls = end.reason is FinishReason.STOP and output.called
        ids = [token for entry in self.entries for token in entry[1]]
        return replace(
            end,
            reason=FinishReason.TOOL_CALLS if calls else end.reason,
            reasoning_tokens=output.reasoning_tokens(ids),
        )

    # --- sending ------------------------------------------------------------------------------------------------------

    def attach(self, outlet: Outlet, sink: int, from_offset: int) -> bool:
        """Send everything from `from_offset` on to this outlet. Return False, and change nothing, if no delta ends
        there.
        """
        self.parse()
        cursor = self._cursor_at(from_offset)
        if cursor is None:
            return False
        self.outlet, self.sink, self.cursor = outlet, sink, cursor
        self.tells_adapter = bool(self.adapter_files)
        self.prompt_cursor = 0 if self._asks_prompt and not from_offset else None
        waits = self.prompt_cursor is not None and self.prompt is None and self.end is None
        # The log probabilities of the prompt go before any output, and come with the next.
        self.dirty = not waits and (cursor < len(self.entries) or self.end is not None or self.tells_adapter)
        if self.dirty:
            outlet.mark(self)
        return True

    def park(self) -> None:
        """Keep the output without sending it."""
        self.outlet = None
        self.dirty = False

    def _cursor_at(self, offset: int) -> int | None:
        if offset == 0:
            return 0
        if offset == self.tokens:
            # Last entries without tokens were not received: they travel with the end, and with the end this attach
            # would not happen.
            place = len(self.entries)
            while place and not self.entries[place - 1][1]:
                place -= 1
            return place
        low, high = 0, len(self.entries)
        while low < high:
            middle = (low + high) // 2
            if self.entries[middle][0] < offset:
                low = middle + 1
            else:
                high = middle
        return low if low < len(self.entries) and self.entries[low][0] == offset else None

    def before(self, offset: int) -> Parsed:
        """Return the output before an offset that is the end of a delta."""
        place = self._cursor_at(offset)
        return self.entries[:place], self.pieces[:place]

    def size_bytes(self) -> int:
        """Return an estimate of the memory that it takes."""
        vectors = sum(map(len, self.end.vectors)) if self.end is not None else 0
        prompt = 0 if self.prompt is None else 8 * len(self.prompt.token_ids) + 4 * self.prompt.rows
        entries = len(self.entries) + len(self.pieces)
        return 200 + 120 * entries + 40 * self.tokens + 128 * self._logprobs + vectors + prompt


def log_of(
    request_id: str, attempt: str, spec: GenerationSpec, on_change: Callable[[OutputLog, bool], None]
) -> OutputLog:
    """Make the log of a sequence; `on_change` as for `OutputLog`."""
    log = OutputLog(
        request_id,
        attempt,
        on_change,
        spec.resume,
        logprobs=spec.sampling.logprobs is not None,
        prompt_logprobs=spec.sampling.prompt_logprobs is not None,
        parsing=spec.parsing,
    )
    log.trace_parent = spec.trace_parent
    return log


def _merged(entries: Sequence[Entry]) -> Entry:
    ids = [token for entry in entries for token in entry[1]]
    logprobs = [position for entry in entries for position in entry[3] or ()]
    return entries[0][0], ids, "".join([entry[2] for entry in entries]), logprobs or None


def _prior_entries(resume: ResumeRecord, *, logprobs: bool) -> Iterator[Entry]:
    """Yield the output before a resume as the deltas in which its client got it.

    Its log probabilities are lost. Each token gets a lower bound instead, because a token without any would shift those
    of later tokens.
    """
    ids, text = resume.prior_token_ids, resume.prior_text
    deltas = resume.prior_deltas or ((len(ids), len(text)),)
    at = read = 0
    for tokens, characters in deltas:
        piece = ids[at : at + tokens]
        unknown = [PositionLogprobs(TokenLogprob(token, LOGPROB_FLOOR)) for token in piece] if logprobs else None
        yield at, piece, text[read : read + characters], unknown
        at, read = at + tokens, read + characters
