"""Runs the suspects of an engine's death one at a time, and turns away what was convicted."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

from cluster.errors import QuarantinedError
from router.dispatch.choice import Choice
from router.dispatch.poison import Suspects

_LOG = logging.getLogger(__name__)


class Isolation:
    """Belongs to one pool of one router. Held choices keep their slots on dead engines until they may run."""

    def __init__(
        self, quarantine_s: float, find: Callable[[str], Choice | None], requeue: Callable[[Choice], None]
    ) -> None:
        """`quarantine_s` of 0 holds and turns away nobody; `find` returns a choice that still waits or runs."""
        self._quarantine_s = quarantine_s
        self._find = find
        self._requeue = requeue
        self._suspects = Suspects(quarantine_s)
        self._dying: list[str] = []
        """Choices that lost their engine in this turn of the loop."""
        self.held: set[str] = set()
        """Choices whose slots are not given back yet."""

    def check(self, choice: Choice) -> None:
        """Let a new choice pass.

        Raises:
            QuarantinedError: its content killed engines.
        """
        now = time.monotonic()
        if self._suspects.watchful and (known := self._suspects.turned_away(choice.content(), now)) is not None:
            raise QuarantinedError(known.incident, known.until - now)

    def suspect(self, choice: Choice) -> None:
        """Hold a choice, and judge it together with the others that lost their engine in the same turn of the loop."""
        if not self._quarantine_s:
            self._requeue(choice)
            return
        if not self._dying:
            asyncio.get_running_loop().call_soon(self._judge)
        self._dying.append(choice.entry.request_id)
        self.held.add(choice.entry.request_id)

    def clear(self, choice: Choice) -> None:
        """Suspect a choice no more, and let the next one run."""
        self._suspects.clear(choice.entry.request_id)
        self._run_canary()

    def leave(self, request_id: str) -> bool:
        """Forget a choice that is over; says whether it was held and still has its slot."""
        was_held = request_id in self.held
        self.held.discard(request_id)
        return was_held

    def _judge(self) -> None:
        names, self._dying = self._dying, []
        # Some may have been cancelled since.
        convicted = self._suspects.death([name for name in names if self._find(name) is not None])
        if convicted is not None and (choice := self._find(convicted)) is not None:
            incident = secrets.token_hex(8)
            self.held.discard(convicted)
            self._suspects.quarantine(choice.content(), incident, time.monotonic())
            _LOG.error("request.quarantined", extra={"request": convicted, "incident": incident})
            choice.convict(QuarantinedError(incident, self._quarantine_s))
        self._run_canary()

    def _run_canary(self) -> None:
        while (name := self._suspects.next_canary()) is not None:
            self.held.discard(name)
            if (choice := self._find(name)) is not None:
                self._requeue(choice)
                return
            self._suspects.clear(name)
