"""Judgement of constraints and of demanded calls by an engine that runs, without a sequence."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from cluster.errors import EngineRequestError
from cluster.models import GenerationSpec, Judgement
from deployments.engines.vllm.compilers.check import Compiler, silent_gap
from deployments.engines.vllm.compilers.judge import judge
from deployments.engines.vllm.parsing.sequence import judge_calls
from deployments.engines.vllm.startup.launch import Launched
from penstock.models import OutputParsing, SamplingParams, StructuredOutput


class Judge:
    """Judge of one engine."""

    def __init__(self, compiler: Compiler, engine: Launched) -> None:
        self._compiler = compiler
        self._engine = engine

    async def constraint(self, constraint: StructuredOutput) -> Judgement:
        """Return what the engine's compiler says of a constraint."""
        return await judge(self._compiler, constraint, self._problem)

    async def calls(self, parsing: OutputParsing, structured: StructuredOutput | None) -> Judgement:
        """Return whether a sequence can be held to the calls that it demands, beside a constraint."""
        spec = GenerationSpec((), SamplingParams(max_tokens=1, structured=structured), parsing=parsing)
        found, constraint = await asyncio.to_thread(judge_calls, self._engine.parsers, spec)
        if found.problem or constraint is None:
            return found
        params = copy.copy(self._engine.translate(GenerationSpec((), SamplingParams(max_tokens=1))))
        params.structured_outputs = constraint
        return Judgement(await self._compiled(params, None))

    async def _problem(self, constraint: StructuredOutput) -> str:
        if (ignored := silent_gap(self._compiler, constraint)) is not None:
            return ignored
        params = self._engine.translate(GenerationSpec((), SamplingParams(max_tokens=1, structured=constraint)))
        return await self._compiled(params, constraint)

    async def _compiled(self, params: Any, constraint: StructuredOutput | None) -> str:
        try:
            # Compiling may take a while, and must not hold up the output of other sequences.
            await asyncio.to_thread(self._engine.frontend.check_constraint, constraint, params)
        except EngineRequestError as error:
            return str(error)
        return ""
