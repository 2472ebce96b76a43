"""A simulated engine that follows constraints in name: it writes what it would without them."""

from __future__ import annotations

from dataclasses import replace

from cluster.models import GenerationSpec, Judgement
from cluster.settings import PoolSettings
from deployments.demo_model import MODEL_DIR
from deployments.engines.base import EngineIdentity, TokenSink
from deployments.engines.sim.engine import SimEngine
from deployments.engines.vllm.compilers.judge import judge
from penstock.models import Capabilities, StructuredOutput
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

    async def start(self) -> EngineIdentity:
        found = await super().start()
        return replace(found, model=replace(found.model, capabilities=Capabilities()))

    async def judge(self, constraint: StructuredOutput) -> Judgement:
        return await judge("llguidance", constraint, self._problem)

    async def _problem(self, constraint: StructuredOutput) -> str:
        self.asked.append(constraint.text)
        return WORDS if '"not"' in constraint.text else ""

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        if spec.sampling.structured is not None:
            self.begun.append(spec.sampling.structured)
        await super().submit(sequence_id, replace(spec, sampling=replace(spec.sampling, structured=None)), sink)
