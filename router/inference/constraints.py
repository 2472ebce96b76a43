"""Constraints of requests, judged by the compiler of the engines before a request waits in line."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from dataclasses import dataclass, replace

from cluster.errors import InvalidRequestError, LinkError, NoReplicaError
from cluster.models import Judgement, ModelInfo
from cluster.settings import LimitSettings
from penstock.models import FieldViolation, OutputParsing, StructuredOutput, ToolMode, Unenforced
from router.dispatch.pool import Pool
from router.inference.parsing import demanding, demands_calls, parsing_of, without_schema
from router.links.questions import Constrained, DemandedCalls
from router.validation import CheckedRequest

_LOG = logging.getLogger(__name__)

FIELD = "sampling.structured_output"
_LATER_S = 1.0
_TOOL = re.compile(r"tools\[(\d+)\](.*)", re.DOTALL)
REMEMBERED = 1_024
"""Judgements that a router remembers. Applications send the same few constraints again and again."""


@dataclass(frozen=True, slots=True)
class Enforced:
    """Constraint that engines follow as a whole."""

    constraint: StructuredOutput | None
    unenforced: tuple[Unenforced, ...] = ()
    """Keywords of the client's schema that it leaves out."""


class ConstraintChecks:
    """Judgements of engines' compilers, remembered by group of replicas and constraint.

    Only the compiler knows which constraints it follows, and replicas of another group may have another one or another
    version. While no replica can be asked, constraints pass: the engine checks every request itself when it starts.
    Those at best effort do not, because nobody could say what is left of them.
    """

    def __init__(self, limits: LimitSettings) -> None:
        """`limits` bound the schemas that engines are given."""
        self._limits = limits
        self._known: OrderedDict[tuple[str, str, Constrained], Judgement] = OrderedDict()

    async def enforced(self, pool: Pool, constraint: StructuredOutput | None) -> Enforced:
        """Return what a pool's engines enforce of a request's constraint: all of it, unless it is at best effort.

        Raises:
            InvalidRequestError: the engines' compiler refuses it. The error has the compiler's own words.
            NoReplicaError: it is at best effort, and no replica can be asked.
        """
        if constraint is None:
            return Enforced(None)
        found = await self._judged(pool, constraint)
        if found.problem:
            raise InvalidRequestError.of(field_of(constraint, found.field), refused(found.problem))
        return Enforced(replace(found.relaxed or constraint, best_effort=False), found.unenforced)

    async def parsing(
        self, pool: Pool, checked: CheckedRequest, info: ModelInfo, structured: StructuredOutput | None
    ) -> OutputParsing | None:
        """Return how the output of a request is parsed, and which schemas of tools the engines follow. Those of tools
        that must be called are followed where every engine can, as if the tools were strict.

        Raises:
            InvalidRequestError: the engines can't hold a model to the calls that the request demands. Names the tool
                whose schema they do not follow.
        """
        parsing = parsing_of(checked, info.capabilities)
        if parsing is None or not demands_calls(parsing):
            return parsing
        wanted = demanding(parsing, self._limits) if parsing.mode is ToolMode.REQUIRED else parsing
        while (found := await self._refused_calls(pool, DemandedCalls(wanted, structured))) is not None:
            tool = _TOOL.match(found.field)
            index = None if tool is None else int(tool[1])
            if wanted != parsing and (index is None or not parsing.tools[index].strict):
                wanted = parsing if index is None else without_schema(wanted, index)
            elif tool is None or index is None:
                raise InvalidRequestError.of("tool_choice", f"must be one that the engine follows: {found.problem}")
            else:
                place = checked.tool_names.index(parsing.tools[index].name)
                raise InvalidRequestError.of(f"prompt.chat.tools[{place}]{tool[2]}", refused_schema(found.problem))
        return wanted

    async def _refused_calls(self, pool: Pool, calls: DemandedCalls) -> Judgement | None:
        """Return the first judgement against calls; None where no group has any."""
        for group_id in _groups(pool):
            found = await self._ask(pool, group_id, calls)
            if found is not None and found.problem:
                return found
        return None

    async def problem(self, pool: Pool, constraint: StructuredOutput) -> FieldViolation | None:
        """Return what a pool's engines refuse of a constraint; None where they follow it or can't be asked."""
        try:
            found = await self._judged(pool, constraint)
        except NoReplicaError:
            return None
        return FieldViolation(field_of(constraint, found.field), refused(found.problem)) if found.problem else None

    async def _judged(self, pool: Pool, constraint: StructuredOutput) -> Judgement:
        """Ask each group. What one group leaves of a constraint is what the next one is asked for."""
        left, unenforced, asked = constraint, tuple[Unenforced, ...](), False
        for group_id in _groups(pool):
            judgement = await self._ask(pool, group_id, left)
            if judgement is None:
                continue
            asked = True
            if judgement.problem:
                return judgement
            left = replace(judgement.relaxed or left, best_effort=constraint.best_effort)
            unenforced += judgement.unenforced
        if constraint.best_effort and not asked:
            raise NoReplicaError(f"no replica of {pool.name!r} can judge a constraint at best effort now", _LATER_S)
        return Judgement("", left if unenforced else None, unenforced)

    async def _ask(self, pool: Pool, group_id: str, asked: Constrained) -> Judgement | None:
        """Ask replicas of a group, until one answers."""
        key = pool.name, group_id, asked
        if (known := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return known
        for replica_id in _groups(pool).get(group_id, ()):
            link = pool.replicas.link(replica_id)
            if link is None:
                continue
            try:
                found = await link.judge(asked)
            except LinkError as error:
                _LOG.info("constraint.unchecked", extra={"replica": replica_id, "error": str(error)})
                continue
            self._known[key] = found
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            return found
        return None


def _groups(pool: Pool) -> dict[str, list[str]]:
    """Return the groups of the replicas that take work, with these."""
    found: dict[str, list[str]] = {}
    for replica_id in pool.replicas.connected():
        announced = pool.replicas.announcements.get(replica_id)
        if announced is not None:
            found.setdefault(announced.group_id, []).append(replica_id)
    return found


def field_of(constraint: StructuredOutput, inside: str = "") -> str:
    """Return the path of a constraint, or of a field inside it."""
    return ".".join(filter(None, (FIELD, constraint.kind.value, inside)))


def refused(problem: str) -> str:
    """Return the description of a violation for a compiler's words."""
    return f"must be a constraint that the engine follows: {problem}"


def refused_schema(problem: str) -> str:
    """Return the description of a violation for a compiler's words about a strict tool."""
    return f"must be a schema that the engine follows, as the tool is strict: {problem}"
