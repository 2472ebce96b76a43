"""Errors of announced load."""

from __future__ import annotations

from cluster.errors.requests import RequestError


class AnnouncementLimitError(RequestError):
    """An announcement beyond a bound on their number."""

    reason = "ANNOUNCEMENT_LIMIT"
    remedy = "Withdraw announcements, wait until some are over, or give the id of one to replace it."

    def __init__(self, pool: str, bound: str, limit: int) -> None:
        self.facts = {"pool": pool, "bound": bound, "limit": str(limit)}
        super().__init__(f"pool {pool!r}: {bound} = {limit:,} are announced already")


class AnnouncementNotFoundError(RequestError):
    """An id that no announcement of this tenant has."""

    reason = "ANNOUNCEMENT_NOT_FOUND"
    remedy = "Check id and pool. An announcement is gone when its time is over."

    def __init__(self, load_id: str) -> None:
        self.load_id = load_id
        super().__init__(f"no announcement {load_id!r}")
