"""Judgement of constraints before they are used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cluster.models import Judgement
from deployments.engines.vllm.compilers.check import Compiler
from deployments.engines.vllm.compilers.relax import relax
from penstock.models import StructuredOutput


async def judge(
    compiler: Compiler, constraint: StructuredOutput, problem_of: Callable[[StructuredOutput], Awaitable[str]]
) -> Judgement:
    """Return what a compiler says of a constraint.

    Of a schema at best effort, what is left is judged like any other: all of it is enforced, or it is refused.

    Args:
        compiler: the engine's.
        constraint: the constraint.
        problem_of: returns why the engine refuses a constraint; empty where it follows it.
    """
    problem = await problem_of(constraint)
    if not problem or not constraint.best_effort:
        return Judgement(problem)
    relaxed = await asyncio.to_thread(relax, compiler, constraint)
    if relaxed is None:
        return Judgement(problem)
    left, unenforced = relaxed
    problem = await problem_of(left)
    return Judgement(problem) if problem else Judgement("", left, unenforced)
