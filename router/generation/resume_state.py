"""Continuity of a choice's output over its attempts."""

from __future__ import annotations

from collections.abc import Iterable

from router.generation.recovery import REFUSED_RESUMES, Fit, fit
from router.links.placement import Group

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0


class ResumeState:
    """Where output began, and whether it is still what an undisturbed run would have given."""

    __slots__ = ("_pauses", "_refused", "adapter_files", "broken", "exact", "given_back", "origin")

    def __init__(self) -> None:
        self.exact = True
        self.broken = False
        """Whether an earlier attempt had output."""
        self.origin: Group | None = None
        """Where the first output came from; None while none has to go on anywhere."""
        self.adapter_files = ""
        """Name of the files of its adapter that the output came from; empty without one, or where it is not known."""
        self.given_back = 0
        """Grants in other groups that were given back."""
        self._refused = 0
        self._pauses = 0

    def interrupt(self, where: Group | None, *, greedy: bool) -> None:
        """Note that an attempt with output is over and the next one goes on from there. Only greedy output does not
        depend on where it is drawn.
        """
        self.broken = True
        self.origin = self.origin or where
        self.exact = self.exact and greedy

    def refused(self) -> bool:
        """Note that an engine refuses to go on with the output; returns whether another one is to be asked."""
        self._refused += 1
        return self._refused <= REFUSED_RESUMES

    def pause_s(self) -> float:
        """Return for how long to keep a place on a replica that can't read its ids, seconds: longer each time."""
        self._pauses += 1
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._pauses - 1, 16))

    def try_place(self, place: Group, elsewhere: Iterable[Group]) -> Fit:
        """Say whether output may go on in this group, given those of the other replicas that take work."""
        if self.origin is None:
            return Fit.SAME
        found = fit(self.origin, place, elsewhere, self.given_back)
        if found is Fit.WAIT:
            self.given_back += 1
        elif found is Fit.INEXACT:
            self.exact = False
        return found
