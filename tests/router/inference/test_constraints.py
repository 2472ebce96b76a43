"""A constraint is judged by the engine's own compiler, before its request waits in line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from cluster.models import GenerationSpec
from cluster.settings import PoolSettings
from deployments.demo_model import MODEL_DIR
from deployments.engines.base import EngineIdentity, TokenSink
from deployments.engines.sim.engine import SimEngine
from penstock.models import Capabilities, StructuredOutput
from penstock.v1 import jobs_pb2 as jobs
from tests.router.inference.test_bad_input import failure
from tests.support.stack import request, running_stack, sim_pool

WORDS = 'Unimplemented keys: ["not"]'


class PickyEngine(SimEngine):
    """Simulated engine with a compiler that knows no "not"."""

    def __init__(self) -> None:
        super().__init__(PoolSettings(**sim_pool()), MODEL_DIR)
        self.asked: list[str] = []
        self.begun = 0

    async def start(self) -> EngineIdentity:
        found = await super().start()
        return replace(found, model=replace(found.model, capabilities=Capabilities()))

    async def constraint_problem(self, constraint: StructuredOutput) -> str | None:
        self.asked.append(constraint.text)
        return WORDS if '"not"' in constraint.text else None

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        self.begun += spec.sampling.structured is not None
        await super().submit(sequence_id, replace(spec, sampling=replace(spec.sampling, structured=None)), sink)


def constrained(schema: dict[str, Any], **more: Any) -> Any:
    return request(structured_output={"json_schema": json.dumps(schema)}, max_tokens=2, **more)


async def test_a_refused_constraint_is_named_with_the_compilers_words_and_starts_nothing(tmp_path: Path) -> None:
    engine = PickyEngine()
    async with running_stack(tmp_path, engine=lambda: engine) as stack:
        await stack.inference().Generate(constrained({"type": "string"}))
        for _ in range(3):
            code, reason, violations = await failure(stack.inference().Generate(constrained({"not": {}})))
            assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
            assert violations == [
                (
                    "sampling.structured_output.json_schema",
                    f"must be a constraint that the engine follows: {WORDS}",
                )
            ]
        await stack.inference().Generate(constrained({"type": "string"}))
    assert engine.begun == 2
    # Applications repeat their constraints; each is judged once.
    assert engine.asked == [json.dumps({"type": "string"}), json.dumps({"not": {}})]


async def test_a_job_with_a_refused_constraint_is_refused_whole_and_names_the_item(tmp_path: Path) -> None:
    async def parts() -> AsyncIterator[jobs.SubmitJobRequest]:
        yield jobs.SubmitJobRequest(header=jobs.JobHeader(model="demo"))
        items = [
            jobs.JobItem(custom_id=f"q{number}", request=constrained(schema))
            for number, schema in enumerate([{"type": "string"}, {"not": {}}, {"not": {}}])
        ]
        yield jobs.SubmitJobRequest(items=jobs.JobItems(items=items))

    engine = PickyEngine()
    async with running_stack(tmp_path, engine=lambda: engine) as stack:
        code, _, violations = await failure(stack.jobs().SubmitJob(parts()))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert [field for field, _ in violations] == ["items[1].request.sampling.structured_output.json_schema"]
        assert "custom_id 'q1'" in violations[0][1]
        assert not (await stack.jobs().ListJobs(jobs.ListJobsRequest())).jobs
    assert engine.begun == 0


async def test_engines_that_follow_no_constraints_are_not_asked(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        _, _, violations = await failure(stack.inference().Generate(constrained({"type": "string"})))
        assert violations == [("sampling.structured_output", "is not supported by this model")]
