"""A simulated engine that follows constraints in name: it writes what it would without them."""

from __future__ import annotations

from dataclasses import replace

from cluster.models import GenerationSpec, Judgement
from cluster.settings import PoolSettings
from deployments.demo_model import MODEL_DIR
from deployments.engines.base import EngineIdentity, TokenSink
from deployments.engines.sim.engine import SimEngine
from deployments.engines.vllm.compilers.judge import judge
from penstock.models import Capabilities, OutputParsing, StructuredOutput
from tests.support.stack import sim_pool

WORDS = 'Unimplemented keys: ["not"]'


class PickyEngine(SimEngine):
    """Simulated engine with a compiler that knows no "not", and what llguidance leaves of a schema at best effort."""

    def __init__(self) -> None:
        super().__init__(PoolSettings(**sim_pool()), MODEL_DIR)
        self.asked: list[str] = []
        """Constraints that it judged."""
        self.begun: list[StructuredOutput] = []
        """Constraints of sequences that it started."""
        self.followed: list[tuple[str, ...]] = []
        """Names of the tools whose schemas each of its sequences with tools follows."""

    async def start(self) -> EngineIdentity:
        found = await super().start()
        return replace(found, model=replace(found.model, capabilities=Capabilities(tools=True)))

    async def judge(self, constraint: StructuredOutput) -> Judgement:
        return await judge("llguidance", constraint, self._problem)

    async def judge_calls(self, parsing: OutputParsing, structured: StructuredOutput | None) -> Judgement:
        self.asked += [tool.name for tool in parsing.tools]
        for index, tool in enumerate(parsing.tools):
            if tool.strict and '"not"' in tool.parameters:
                return Judgement(WORDS, field=f"tools[{index}].parameters")
        return Judgement("no grammar of its calls" if parsing.template_kwargs else "")

    async def _problem(self, constraint: StructuredOutput) -> str:
        self.asked.append(constraint.text)
        return WORDS if '"not"' in constraint.text else ""

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        if spec.sampling.structured is not None:
            self.begun.append(spec.sampling.structured)
        if spec.parsing is not None:
            self.followed.append(tuple(tool.name for tool in spec.parsing.tools if tool.strict))
        free = replace(spec, sampling=replace(spec.sampling, structured=None), parsing=None)
        await super().submit(sequence_id, free, sink)
