"""Constraints of requests, judged by the compiler of the engines before a request waits in line."""

from __future__ import annotations

import logging
from collections import OrderedDict

from cluster.errors import InvalidRequestError, LinkError
from penstock.models import StructuredOutput
from router.dispatch.pool import Pool

_LOG = logging.getLogger(__name__)

FIELD = "sampling.structured_output"
REMEMBERED = 1_024
"""Judgements that a router remembers. Applications send the same few constraints again and again."""


class ConstraintChecks:
    """Judgements of engines' compilers, remembered by group of replicas and constraint.

    Only the compiler knows which constraints it follows, and replicas of another group may have another one or another
    version. While no replica can be asked, constraints pass: the engine checks every request itself when it starts.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, StructuredOutput], str] = OrderedDict()

    async def check(self, pool: Pool, constraint: StructuredOutput | None) -> None:
        """Check the constraint of a request for a pool.

        Raises:
            InvalidRequestError: the engines' compiler refuses it. The error has the compiler's own words.
        """
        if constraint is not None and (problem := await self.problem(pool, constraint)):
            raise InvalidRequestError.of(f"{FIELD}.{constraint.kind.value}", refused(problem))

    async def problem(self, pool: Pool, constraint: StructuredOutput) -> str:
        """Return why a pool's engines refuse a constraint; empty where they follow it or can't be asked."""
        for replica_id in pool.replicas.connected():
            link, announced = pool.replicas.link(replica_id), pool.replicas.announcements.get(replica_id)
            if link is None or announced is None:
                continue
            key = pool.name, announced.group_id, constraint
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
            try:
                problem = await link.check_constraint(constraint)
            except LinkError as error:
                _LOG.info("constraint.unchecked", extra={"replica": replica_id, "error": str(error)})
                return ""
            self._known[key] = problem
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            return problem
        return ""


def refused(problem: str) -> str:
    """Return the description of a violation for a compiler's words."""
    return f"must be a constraint that the engine follows: {problem}"
