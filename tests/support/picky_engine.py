"""A simulated engine that follows constraints in name: it writes what it would without them."""

from __future__ import annotations

import json
from dataclasses import replace

from cluster.models import GenerationSpec, Judgement
from cluster.settings import PoolSettings
from deployments.demo_model import MODEL_DIR
from deployments.engines.base import EngineIdentity, TokenSink
from deployments.engines.sim.engine import SimEngine
from penstock.models import Capabilities, ConstraintKind, StructuredOutput, Unenforced
from tests.support.stack import sim_pool

WORDS = 'Unimplemented keys: ["not"]'


class PickyEngine(SimEngine):
    """Simulated engine with a compiler that knows no "not"."""

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
        self.asked.append(constraint.text)
        if '"not"' not in constraint.text:
            return Judgement()
        if not constraint.best_effort:
            return Judgement(WORDS)
        left = {key: value for key, value in json.loads(constraint.text).items() if key != "not"}
        relaxed = StructuredOutput(ConstraintKind.JSON_SCHEMA, json.dumps(left))
        return Judgement("", relaxed, (Unenforced("#/not", "not", WORDS),))

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        if spec.sampling.structured is not None:
            self.begun.append(spec.sampling.structured)
        await super().submit(sequence_id, replace(spec, sampling=replace(spec.sampling, structured=None)), sink)
