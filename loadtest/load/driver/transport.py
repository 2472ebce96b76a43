"""What a driver needs of the way to a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from loadtest.load.driver.stream import StreamObservation
from loadtest.load.schedule.plan import PlannedRequest


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The model under load."""

    name: str
    context: int
    """Longest prompt and output together, in tokens; 0 where the server does not tell."""
    vocabulary: int
    """Number of token ids that prompts may use."""


@dataclass(frozen=True, slots=True)
class Observers:
    """Receivers of what a stream brings."""

    first: Callable[[float, int], None]
    """Receiver of the TTFT, and of the tokens that came."""
    gap: Callable[[float, int], None]
    """Receiver of each later gap, and of the tokens that ended it."""


class StreamFailedError(Exception):
    """Error of one request: the reason that is counted, and the server's words."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Transport(Protocol):
    """Connection to the servers of a run."""

    served: LoadedModel

    async def connect(self) -> None:
        """Connect to every server. Otherwise the first requests would wait for it.

        Raises:
            TimeoutError: a server does not answer.
            SettingsError: a server can't be reached.
        """
        ...

    async def send(
        self, planned: PlannedRequest, prompt: Sequence[int], output: int, seen: StreamObservation, observers: Observers
    ) -> None:
        """Send a prompt of token ids, and read exactly `output` tokens. `seen` is updated with each message.

        Raises:
            StreamFailedError: the request failed.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
