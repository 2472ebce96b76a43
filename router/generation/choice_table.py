"""Choices that wait or run in one pool of a router."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cluster.queue.entries import choice_ids
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState
from router.links.placement import Group


class ChoiceTable(Mapping[str, Choice]):
    """Live choices by their id in the queue. Used on the router's loop; other threads may copy `values()`."""

    def __init__(self) -> None:
        self._choices: dict[str, Choice] = {}

    def __getitem__(self, request_id: str) -> Choice:
        return self._choices[request_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._choices)

    def __len__(self) -> int:
        return len(self._choices)

    def snapshot(self) -> list[Choice]:
        """Copy the choices in one go, which another thread may do while the loop changes the table."""
        return list(self._choices.values())

    def take(self, choice: Choice) -> Choice | None:
        """Put a choice in; returns the one that had its id before."""
        old = self._choices.get(choice.entry.request_id)
        self._choices[choice.entry.request_id] = choice
        return old if old is not choice else None

    def drop(self, choice: Choice) -> bool:
        """Take a choice out; returns False where it is not in, or another call's choice has its id."""
        if self._choices.get(choice.entry.request_id) is not choice:
            return False
        del self._choices[choice.entry.request_id]
        return True

    def origins(self) -> list[Group]:
        """Return the groups in which output began that waits to go on."""
        waits = (choice.resume_state.origin for choice in self._choices.values() if choice.state.waits)
        return [origin for origin in waits if origin is not None]

    def of_request(self, request_ids: tuple[str, ...], tenant: str) -> list[Choice]:
        """Return the choices with these ids that belong to a tenant."""
        found = (self._choices.get(each) for each in request_ids)
        return [choice for choice in found if choice is not None and choice.entry.tenant == tenant]

    def cancel(self, request_id: str, tenant: str) -> bool:
        """Cancel the choices of a tenant's request; return whether there are any."""
        choices = self.of_request((request_id, *choice_ids(request_id)), tenant)
        for choice in choices:
            choice.cancel()
        return bool(choices)

    def waiting(self) -> list[Choice]:
        """Return the choices that stand in line."""
        return [choice for choice in self._choices.values() if choice.state is ChoiceState.WAITING]
