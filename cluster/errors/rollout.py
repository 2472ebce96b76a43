"""Errors of roll-outs."""

from __future__ import annotations

from cluster.errors.requests import RequestError


class RolloutStateError(RequestError):
    """An order that the state of the pool's roll-out does not allow."""

    reason = "ROLLOUT_STATE"
    remedy = "Look at the roll-out with `penstock rollout POOL`, and wait for its end or let it go back."

    def __init__(self, pool: str, problem: str) -> None:
        self.facts = {"pool": pool}
        super().__init__(f"pool {pool!r}: {problem}")
