"""Which waiting choices hear from the queue how many are ahead of them, and when.

Each position costs Redis some 10 us. So a heartbeat asks for a bounded number, and only for choices whose client is
told. In a longer line, half of them are those that are nearly served, and the others take turns. Clients are told what
was heard, a few in each turn of the event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import Mapping

from cluster.queue.heartbeats import POSITIONS
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState
from router.generation.choice_table import ChoiceTable

_LOG = logging.getLogger(__name__)

LEAST_S = 0.75
"""Least seconds between two heartbeats that ask: clients hear about once a second where heartbeats are quicker, too."""
PER_TURN = 4
"""Clients that a turn of the event loop tells; each takes a tenth of a millisecond."""


class Positions:
    """Positions in one pool. Used on the router's loop; `ask` is called from another thread."""

    def __init__(self, choices: ChoiceTable) -> None:
        """`choices` are those that wait or run here, by their queue id; read, never changed."""
        self._choices = choices
        self._asked: dict[str, int] = {}
        """The round in which a choice's turn came last."""
        self._asked_at = float("-inf")
        self._round = 0
        self._heard: deque[tuple[Choice, int]] = deque()

    def ask(self) -> tuple[str, ...]:
        """Return the choices to ask for now, at most `POSITIONS`."""
        if (now := time.monotonic()) - self._asked_at < LEAST_S:
            return ()
        self._asked_at = now
        # A copy in one go: the loop changes what it is made of.
        choices = self._choices.snapshot()
        waiting = {
            choice.entry.request_id: choice.wait.position
            for choice in choices
            if choice.state is ChoiceState.WAITING and choice.wait.watched
        }
        if len(waiting) <= POSITIONS:
            self._asked.clear()
            return tuple(waiting)
        self._round += 1
        first = heapq.nsmallest(POSITIONS // 2, waiting, key=waiting.__getitem__)
        asked = {name: self._asked.get(name, 0) for name in waiting}
        asked.update(dict.fromkeys(first, self._round))
        turns = heapq.nsmallest(POSITIONS - len(first), asked, key=asked.__getitem__)
        asked.update(dict.fromkeys(turns, self._round))
        self._asked = asked
        return (*first, *turns)

    def heard(self, positions: Mapping[str, int]) -> None:
        """Take what the queue answered."""
        idle = not self._heard
        for request_id, position in positions.items():
            if (choice := self._choices.get(request_id)) is not None:
                self._heard.append((choice, position))
        if idle:
            self._tell()

    def _tell(self) -> None:
        for _ in range(min(PER_TURN, len(self._heard))):
            choice, position = self._heard.popleft()
            try:
                choice.on_position(position)
            except Exception:  # noqa: BLE001 - the others still hear theirs, now and later
                _LOG.exception("positions.not_told", extra={"request": choice.entry.request_id})
        if self._heard:
            asyncio.get_running_loop().call_soon(self._tell)
