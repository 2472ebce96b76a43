"""Locust's users. They say when a request is due; the driver sends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import gevent
from locust import User, task

from loadtest.load.locust.session import LoadTest
from loadtest.load.schedule.plan import Planned

_IDLE_S = 0.2


class PenstockUser(User):
    """Is a source of requests that never waits for answers.

    Without a scenario every user has a stream of arrivals of its own, of `--user-rate`. With one, the process sends its
    part of it, and the number of users changes nothing.
    """

    abstract = True
    kind: ClassVar[str] = "chat"

    def on_start(self) -> None:
        """Begin a stream of arrivals."""
        self.load: LoadTest = self.environment.penstock
        self.own: Iterator[Planned] | None = self.load.plan_for(self.kind)

    @task
    def send_next(self) -> None:
        """Hand over the next request shortly before it is due."""
        planned = self.load.next_of(self.own)
        if planned is None:
            gevent.sleep(_IDLE_S)
            return
        self.load.wait_for(planned)
        self.load.hand_over(planned)


class ChatUser(PenstockUser):
    """Chats interactively."""

    kind = "chat"
    weight = 6


class RagUser(PenstockUser):
    """Asks about documents that it sends along."""

    kind = "rag"
    weight = 1


class BatchUser(PenstockUser):
    """Sends work that nobody waits for."""

    kind = "batch"
    weight = 2


class AgentUser(PenstockUser):
    """Calls a model again and again with the same long beginning."""

    kind = "agent"
    weight = 3
