"""What choices and pools know of each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from router.dispatch.recovery import Failure, Group, RecoveryLimits

if TYPE_CHECKING:
    from router.dispatch.choice import Choice
    from router.dispatch.link import ReplicaLink


class Dispatch(Protocol):
    """Is what a choice asks of its pool."""

    @property
    def recovery(self) -> RecoveryLimits:
        """What its choices may lose."""
        ...

    def release(self, choice: Choice) -> None:
        """Give the slot back; the choice is over."""
        ...

    def requeue(self, choice: Choice) -> None:
        """Give the slot back, and wait for another one to go on."""
        ...

    def note_loss(self, failure: Failure, replica_id: str) -> None:
        """Count an attempt that was lost on a replica."""
        ...

    def note_output(self, replica_id: str) -> None:
        """Learn that an attempt on a replica had its first output."""
        ...

    def suspect(self, choice: Choice) -> None:
        """As `requeue`, but an engine died under it before its first output, so it may have to wait for its turn."""
        ...

    def cleared(self, choice: Choice) -> None:
        """Learn that a suspect had output, or is over."""
        ...

    def hand_over(self, choice: Choice) -> None:
        """Let go of a choice that is another router's, or another call's, now."""
        ...

    def park(self, choice: Choice) -> None:
        """Leave a choice as it is, for another router to adopt."""
        ...

    def leave(self, choice: Choice) -> None:
        """Leave a running attempt as it is, for whoever comes back for it."""
        ...

    def refuse(self, choice: Choice) -> None:
        """Give back a grant that could not be started, and wait again."""
        ...

    def withdraw(self, choice: Choice) -> None:
        """Leave the line."""
        ...


@dataclass(frozen=True, slots=True)
class Placement:
    """Is where an attempt runs."""

    link: ReplicaLink
    group_id: str
    price_per_s: float
    model_digest: str
    tokenizer_digest: str = ""
    """Of the ids that its engine reads; empty where it is not known."""

    @property
    def group(self) -> Group:
        """Where its output is comparable."""
        return Group(self.group_id, self.model_digest)
