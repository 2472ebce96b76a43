"""Display of an answer while it comes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from cluster.terminal.receipt import print_receipt
from router.commands.tools import call_text

if TYPE_CHECKING:
    from penstock.client import Delta, Event, Finished, ToolCall


class Shown:
    """Printer of an answer's events for a person: text and calls of tools to standard output, the rest to another
    console.

    The reasoning and text of choice 0 are printed as they come, those of other choices at the end, and calls too. As a
    context it ends the line of a reasoning that was cut off.
    """

    def __init__(self, others: Console, *, labels: bool = False, is_json: bool = False, receipt: bool = True) -> None:
        """Prepare an answer.

        Args:
            others: console for everything but text and calls.
            labels: whether each choice gets its number.
            is_json: whether a JSON Schema constrains the answer.
            receipt: whether the receipt is printed.
        """
        self._others = others
        self._labels = labels
        self._is_json = is_json
        self._receipt = receipt
        self._texts: dict[int, str] = {}
        self._reasoning: dict[int, str] = {}
        self._calls: dict[int, dict[int, ToolCall]] = {}
        """Calls of each choice, by their numbers."""
        self._was_cut = False
        self._in_reasoning = False
        """Whether the last line of the other console is reasoning."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end_reasoning()

    @property
    def text(self) -> str:
        """Text of choice 0 so far."""
        return self._texts.get(0, "")

    @property
    def reasoning(self) -> str:
        """Reasoning of choice 0 so far."""
        return self._reasoning.get(0, "")

    @property
    def was_cut(self) -> bool:
        """Whether choice 0 reached the largest number of tokens."""
        return self._was_cut

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Calls of choice 0 so far."""
        return self._calls_of(0)

    def add(self, event: Event) -> None:
        """Print an event."""
        from penstock.client import Delta, Finished, Queued, Resumed

        if isinstance(event, Delta):
            self._add_delta(event)
            return
        self._end_reasoning()
        if isinstance(event, Queued):
            self._others.print(f"[dim]waiting, {event.position} ahead[/]", highlight=False)
        elif isinstance(event, Resumed):
            self._others.print("[dim]resumed[/]", highlight=False)
        elif isinstance(event, Finished):
            self._end(event)

    def _add_delta(self, delta: Delta) -> None:
        from penstock.client import ToolCall

        index = delta.choice_index
        if delta.reasoning:
            self._add_reasoning(index, delta.reasoning)
        if delta.text:
            self._add_text(index, delta.text)
        self._texts.setdefault(index, "")
        calls = self._calls.setdefault(index, {})
        for piece in delta.tool_calls:
            begun = calls.get(piece.index, ToolCall(piece.id, piece.name, ""))
            calls[piece.index] = replace(begun, arguments=begun.arguments + piece.arguments)

    def _add_text(self, index: int, text: str) -> None:
        before = self._texts.get(index, "")
        if index == 0:
            self._end_reasoning()
            sys.stdout.write(text if before else f"{self._label(0)}{text}")
            sys.stdout.flush()
        self._texts[index] = before + text

    def _add_reasoning(self, index: int, text: str) -> None:
        before = self._reasoning.get(index, "")
        if index == 0:
            self._print_reasoning(text if before else f"{self._label(0)}{text}")
        self._reasoning[index] = before + text

    def _print_reasoning(self, text: str) -> None:
        self._others.print(Text(text, "dim"), end="", soft_wrap=True)
        self._in_reasoning = True

    def _end_reasoning(self) -> None:
        if self._in_reasoning:
            self._others.print()
        self._in_reasoning = False

    def _label(self, index: int) -> str:
        return f"[{index}] " if self._labels or index else ""

    def _calls_of(self, index: int) -> tuple[ToolCall, ...]:
        return tuple(call for _, call in sorted(self._calls.get(index, {}).items()))

    def _end(self, finished: Finished) -> None:
        self._was_cut = any(end.finish_reason == "length" for end in finished.choices if end.index == 0)
        for index in sorted(self._texts) or (0,):
            text = self._texts.get(index, "")
            if index and index in self._reasoning:
                self._print_reasoning(f"{self._label(index)}{self._reasoning[index]}")
                self._end_reasoning()
            if index or not text:
                # The text of choice 0 is already there.
                sys.stdout.write(f"{self._label(index)}{text}")
            lines = [call_text(call) for call in self._calls_of(index)]
            sys.stdout.write("\n".join([*([""] if text or not lines else []), *lines, ""]))
            sys.stdout.flush()
        for each in finished.unenforced:
            self._others.print(
                f"[yellow]not enforced:[/] {escape(f'{each.place}: {each.reason}')}", highlight=False, soft_wrap=True
            )
        if self._is_json:
            self._check_json(finished)
        if self._receipt:
            print_receipt(finished, self._others)

    def _check_json(self, finished: Finished) -> None:
        """Say which choices were cut off within their JSON."""
        for end in finished.choices:
            text = self._texts.get(end.index, "")
            if end.finish_reason == "length" and not _is_json(text):
                which = f" of choice {end.index}" if self._labels else ""
                self._others.print(
                    f"[yellow]the JSON{which} is not complete:[/] it reached the largest number of tokens; "
                    + escape("raise it with --max-tokens"),
                    highlight=False,
                    soft_wrap=True,
                )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
