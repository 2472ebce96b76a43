"""What a choice needs of the pool that it runs in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from router.links.failure import Failure, RecoveryLimits
from router.links.placement import Group, Placement

AnyChoice = TypeVar("AnyChoice", contravariant=True)


class Dispatch(Protocol[AnyChoice]):
    """What a choice asks of its pool."""

    @property
    def recovery(self) -> RecoveryLimits:
        """Limits on lost attempts and on silence."""

    def release(self, choice: AnyChoice) -> None:
        """Give the slot back; the choice is over."""

    def requeue(self, choice: AnyChoice) -> None:
        """Give the slot back, and wait for another one to go on."""

    def note_loss(self, failure: Failure, replica_id: str) -> None:
        """Count an attempt that was lost on a replica."""

    def note_output(self, replica_id: str) -> None:
        """Learn that an attempt on a replica had its first output."""

    def suspect(self, choice: AnyChoice) -> None:
        """Give the slot back as `requeue` does, as soon as the choice may run: an engine died under it before its first
        output.
        """

    def cleared(self, choice: AnyChoice) -> None:
        """Learn that a suspect has had output, or is over."""

    def hand_over(self, choice: AnyChoice) -> None:
        """Let go of a choice that another router, or another call, has now."""

    def park(self, choice: AnyChoice) -> None:
        """Leave a choice as it is, for another router to adopt."""

    def leave(self, choice: AnyChoice) -> None:
        """Leave a running attempt as it is, for the client's next call."""

    def refuse(self, choice: AnyChoice) -> None:
        """Give back a grant that could not be started, and wait again."""

    def translate(self, choice: AnyChoice, place: Placement, elsewhere: Iterable[Group]) -> None:
        """Start a choice on a granted place that can't read it as it is, once it has that engine's ids. Where it
        can't have these, it waits for one of the other groups, or fails.
        """

    def withdraw(self, choice: AnyChoice) -> None:
        """Leave the line."""
