"""Locust's users. They decide when a request is due. The driver sends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import gevent
from locust import User, task

from loadtest.load.locust.session import LoadTest
from loadtest.load.schedule.plan import PlannedRequest

_IDLE_S = 0.2


class PenstockUser(User):
    """Source of requests that never waits for answers.

    Without a scenario every user has its own stream of arrivals, at `--user-rate`. With a scenario, the process sends
    its part of it, and the number of users changes nothing.
    """

    abstract = True
    kind: ClassVar[str] = "chat"

    def on_start(self) -> None:
        """Begin a stream of arrivals."""
        self.load: LoadTest = self.environment.penstock
        self.own: Iterator[PlannedRequest] | None = self.load.plan_for(self.kind)

    @task
    def send_next(self) -> None:
        """Pass the next request on shortly before it is due."""
        planned = self.load.next_of(self.own)
        if planned is None:
            gevent.sleep(_IDLE_S)
            return
        self.load.wait_for(planned)
        self.load.hand_over(planned)


class ChatUser(PenstockUser):
    """User who chats interactively."""

    kind = "chat"
    weight = 6


class RagUser(PenstockUser):
    """User who asks about documents that the prompt includes."""

    kind = "rag"
    weight = 1


class BatchUser(PenstockUser):
    """User whose work is not urgent."""

    kind = "batch"
    weight = 2


class AgentUser(PenstockUser):
    """User that calls a model repeatedly with the same long beginning."""

    kind = "agent"
    weight = 3
