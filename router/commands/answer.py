"""Display of an answer while it comes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from cluster.terminal.receipt import print_receipt

if TYPE_CHECKING:
    from penstock.client import Event, Finished


class Shown:
    """Printer of an answer's events for a person: text to standard output, the rest to another console.

    The text of choice 0 is printed as it comes, that of other choices at the end.
    """

    def __init__(self, others: Console, *, labels: bool = False, is_json: bool = False, receipt: bool = True) -> None:
        """Prepare an answer.

        Args:
            others: console for everything but the text.
            labels: whether each choice gets its number.
            is_json: whether a JSON Schema constrains the answer.
            receipt: whether the receipt is printed.
        """
        self._others = others
        self._labels = labels
        self._is_json = is_json
        self._receipt = receipt
        self._texts: dict[int, str] = {}

    @property
    def text(self) -> str:
        """Text of choice 0 so far."""
        return self._texts.get(0, "")

    def add(self, event: Event) -> None:
        """Print an event."""
        from penstock.client import Delta, Finished, Queued, Resumed

        if isinstance(event, Delta):
            self._add_text(event.choice_index, event.text)
        elif isinstance(event, Queued):
            self._others.print(f"[dim]waiting, {event.position} ahead[/]", highlight=False)
        elif isinstance(event, Resumed):
            self._others.print("[dim]resumed[/]", highlight=False)
        elif isinstance(event, Finished):
            self._end(event)

    def _add_text(self, index: int, text: str) -> None:
        if index == 0:
            begins = self._labels and 0 not in self._texts
            sys.stdout.write(f"[0] {text}" if begins else text)
            sys.stdout.flush()
        self._texts[index] = self._texts.get(index, "") + text

    def _end(self, finished: Finished) -> None:
        others = (f"[{index}] {self._texts[index]}\n" for index in sorted(self._texts) if index)
        sys.stdout.write("".join(("\n", *others)))
        sys.stdout.flush()
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
