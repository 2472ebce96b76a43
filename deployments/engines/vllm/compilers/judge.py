"""Judgement of constraints before they are used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from cluster.models import Judgement
from deployments.engines.vllm.compilers.check import Compiler
from deployments.engines.vllm.compilers.relax import relax
from penstock.models import ConstraintKind, StructuralTag, StructuredOutput, Unenforced

ProblemOf = Callable[[StructuredOutput], Awaitable[str]]


async def judge(compiler: Compiler, constraint: StructuredOutput, problem_of: ProblemOf) -> Judgement:
    """Return what a compiler says of a constraint.

    Of a schema at best effort, what is left is judged like any other: all of it is enforced, or it is refused.

    Args:
        compiler: the engine's.
        constraint: the constraint.
        problem_of: returns why the engine refuses a constraint; empty where it follows it.
    """
    if constraint.tag is not None:
        return await _judge_tag(compiler, constraint, constraint.tag, problem_of)
    problem = await problem_of(constraint)
    if not problem or not constraint.best_effort:
        return Judgement(problem)
    relaxed = await asyncio.to_thread(relax, compiler, constraint)
    if relaxed is None:
        return Judgement(problem)
    left, unenforced = relaxed
    problem = await problem_of(left)
    return Judgement(problem) if problem else Judgement("", left, unenforced)


async def _judge_tag(
    compiler: Compiler, constraint: StructuredOutput, tag: StructuralTag, problem_of: ProblemOf
) -> Judgement:
    parts, unenforced = list(tag.structures), list[Unenforced]()
    for index, part in enumerate(parts):
        schema = StructuredOutput(ConstraintKind.JSON_SCHEMA, part.schema, best_effort=constraint.best_effort)
        found = await judge(compiler, schema, problem_of)
        if found.problem:
            return replace(found, field=f"structures[{index}].json_schema")
        if found.relaxed is not None:
            parts[index] = replace(part, schema=found.relaxed.text)
            unenforced += [replace(each, place=f"structures[{index}]{each.place}") for each in found.unenforced]
    left = replace(constraint, tag=replace(tag, structures=tuple(parts)), best_effort=False)
    problem = await problem_of(left)
    return Judgement(problem) if problem else Judgement("", left if unenforced else None, tuple(unenforced))
