"""The calls to the router, in a thread of their own: a router that does not answer must not stop the keys."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.client import Client, PenstockClientError
from router.commands.top.looked import Looked

TIMEOUT_S = 5.0
"""How long one call may take."""
DECISIONS = 50
"""Decisions that are read for their page."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What to read beside the status."""

    decisions_of: str = ""
    """Pool whose decisions are wanted; empty for none."""


def look(client: Client, target: str, before: Looked | None, wish: Wish) -> Looked:
    """Ask once.

    Raises:
        PenstockClientError: there is no answer, or the caller may not.
    """
    status = client.cluster_status(timeout=TIMEOUT_S)
    now, at_ms = time.monotonic(), time.time_ns() // 1_000_000
    rates = (before.rates if before is not None else Looked(status, target).rates).after(now, status)
    found = Looked(status, target, rates, at_ms)
    if wish.decisions_of and any(each.name == wish.decisions_of for each in status.pools):
        listed = client.decisions(wish.decisions_of, limit=DECISIONS, timeout=TIMEOUT_S)
        return replace(found, decisions=listed.decisions)
    return found


class Poller:
    """A thread that looks again and again. `looked` always has the last picture, with the reason why it is old."""

    def __init__(
        self,
        client: Client,
        first: Looked,
        period_s: float,
        on_look: Callable[[], None],
        explain: Callable[[PenstockClientError], str],
    ) -> None:
        """`on_look` is called in the thread after each look; `explain` says why a call failed."""
        self.looked = first
        self.wish = Wish()
        self._client = client
        self.period_s = period_s
        self._on_look = on_look
        self._explain = explain
        self.answered_at = time.monotonic()
        """Time of the last answer, seconds of the monotonic clock."""
        self._ends = threading.Event()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="top.poll", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def hurry(self) -> None:
        """Look at once, because something else is wanted."""
        self._hurry.set()

    def stop(self) -> None:
        """End after the call that is under way."""
        self._ends.set()
        self._hurry.set()

    def _run(self) -> None:
        while True:
            self._hurry.wait(self.period_s)
            self._hurry.clear()
            if self._ends.is_set():
                return
            try:
                self.looked = look(self._client, self.looked.target, self.looked, self.wish)
                self.answered_at = time.monotonic()
            except PenstockClientError as error:
                if self._ends.is_set():
                    return
                self.looked = replace(self.looked, trouble=self._explain(error))
            self._on_look()
