"""Standby of a replica: loaded and without work, until the pool's autoscaler wakes it.

Orders come with heartbeats. A replica that is told to stand by reports it at once, finishes what it runs, and then lets
its engine sleep where the engine can. Told to wake, it wakes the engine and has it make a token, and reports that it is
ready.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from cluster.errors import EngineDeadError, EngineRequestError, EngineStartError
from deployments.engines.base import Engine, EngineIdentity
from deployments.replica.attempts import AttemptTable
from deployments.replica.first_token import first_token
from deployments.replica.time_account import TimeAccount
from penstock.models import ReplicaState

_LOG = logging.getLogger(__name__)

GRACE_S = 30.0
"""Seconds for which an order stays in force while the store has none, or does not answer: it may have lost it, and the
leader gives the next one at its next tick. A pool without a leader must not sleep for longer."""
WAKE_TIMEOUT_S = 300.0
"""Seconds after which an engine that does not wake up, or fall asleep, counts as dead."""
_REPLIES = 2
"""Answered heartbeats after which the store certainly knows that this replica takes no work."""


class Standby:
    """Standby of one replica. Its methods run on the engine's loop.

    Args:
        engine: sleeps meanwhile.
        identity: of the engine.
        table: attempts of the replica.
        tell: sends a heartbeat now.
        account: of the replica's time.
        on_death: called with the reason when the engine failed to sleep or to wake. The replica is of no use then.
    """

    def __init__(
        self,
        engine: Engine,
        identity: EngineIdentity,
        table: AttemptTable,
        tell: Callable[[], None],
        on_death: Callable[[EngineDeadError], None],
        *,
        account: TimeAccount,
    ) -> None:
        self._engine = engine
        self._identity = identity
        self._table = table
        self._tell = tell
        self._on_death = on_death
        self._account = account
        self.ordered = False
        """Whether the order in force is to stand by."""
        self._ordered_at = 0.0
        """When the last order came, monotonic seconds."""
        self._holds_until = 0.0
        """When the order in force ends unless a heartbeat is answered before, in seconds of the loop."""
        self.replies = 0
        """Answered heartbeats since the start."""
        self._heard = asyncio.Event()
        self._ended = False
        self.resting = False
        """Whether the replica takes no work."""
        self.asleep = False
        """Whether the engine sleeps."""
        self.wakes = 0
        """Ends of a standby since the start."""
        self.wake_s: float | None = None if identity.sleeps else 0.0
        """Seconds of the last wake-up; None before the first. An engine that can't sleep is awake at once."""

    def hear(self, order: bool | None, now: float) -> None:
        """Take the order in a heartbeat's answer; None where none is in force. `now`: monotonic seconds."""
        if order is not None:
            self.ordered, self._ordered_at = order, now
        elif now - self._ordered_at > GRACE_S:
            self.ordered = False
        self._holds_until = asyncio.get_running_loop().time() + GRACE_S - (now - self._ordered_at)
        self.replies += 1
        self._heard.set()

    def state_for(self, own: ReplicaState) -> ReplicaState:
        """Return what a replica reports whose state is `own` without a standby."""
        return ReplicaState.STANDBY if self.resting and own is ReplicaState.READY else own

    def end(self) -> None:
        """Take no work ever again."""
        self._ended = True

    def report(self) -> dict[str, float]:
        """Return the values for the heartbeat."""
        found = {"asleep": float(self.asleep)} if self._identity.sleeps else {}
        return found if self.wake_s is None else found | {"wake_s": self.wake_s}

    async def run(self) -> None:
        """Follow the orders until the engine dies."""
        try:
            while True:
                await self._until(lambda: self.ordered)
                await self._rest()
                await self._wake()
        except EngineDeadError as error:
            self._on_death(error)

    async def _rest(self) -> None:
        """Stand by until the order ends."""
        self.resting = True
        self._account.stand_by(time.monotonic(), self._engine.stats())
        self._tell()
        _LOG.info("standby.begins")
        sure = self.replies + _REPLIES
        await self._until(lambda: not self.ordered or (self.replies >= sure and not self._table.sequences))
        if self.ordered and self._identity.sleeps and not self._ended:
            # A start that was under way all the same is refused, and runs elsewhere.
            self._table.draining = True
            await self._timed(self._engine.sleep(), "fall asleep")
            self.asleep = True
            self._tell()
            _LOG.info("standby.asleep")
        await self._until(lambda: not self.ordered)

    async def _wake(self) -> None:
        began = time.monotonic()
        self.wakes += 1
        if self.asleep:
            await self._timed(self._wake_engine(), "wake up")
            self.asleep = False
            # Unless the replica drains by now.
            self._table.draining = self._ended
            self.wake_s = time.monotonic() - began
        self.resting = False
        self._account.serve(time.monotonic(), self._engine.stats())
        self._tell()
        _LOG.info("standby.ends", extra={"seconds": round(time.monotonic() - began, 3)})

    async def _wake_engine(self) -> None:
        await self._engine.wake()
        try:
            await first_token(self._engine, self._identity.model.task)
        except (EngineStartError, EngineRequestError) as error:
            raise EngineDeadError(f"no token after the wake-up: {error}") from error

    async def _timed(self, call: Awaitable[None], what: str) -> None:
        try:
            async with asyncio.timeout(WAKE_TIMEOUT_S):
                await call
        except TimeoutError:
            raise EngineDeadError(f"the engine did not {what} within {WAKE_TIMEOUT_S:.0f} s") from None

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Wait for a condition. It is looked at with each answered heartbeat, and once an order is over without one."""
        loop = asyncio.get_running_loop()
        while not reached():
            self._heard.clear()
            try:
                async with asyncio.timeout_at(self._holds_until if self.ordered else None):
                    await self._heard.wait()
            except TimeoutError:
                if self.ordered and loop.time() >= self._holds_until:
                    _LOG.warning("standby.store_away", extra={"seconds": GRACE_S})
                    self.ordered = False
