"""A constraint is judged by the engine's own compiler, before its request waits in line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.errors import InvalidRequestError, LinkLostError
from cluster.models import Judgement
from penstock.models import ConstraintKind, StructuralTag, StructuredOutput, TaggedSchema
from penstock.v1 import inference_pb2 as api
from penstock.v1 import jobs_pb2 as jobs
from penstock.v1 import types_pb2 as types
from router.links.link import ReplicaLink
from router.validation import RequestLimits, check_request
from tests.router.inference.test_bad_input import failure
from tests.support.picky_engine import WORDS, PickyEngine
from tests.support.stack import request, running_stack
from tests.support.waiting import until


def constrained(schema: dict[str, Any], *, best_effort: bool = False, **more: Any) -> Any:
    asked = {"json_schema": json.dumps(schema), "best_effort": best_effort}
    return request(structured_output=asked, max_tokens=2, **more)


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
    assert len(engine.begun) == 2
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
    assert not engine.begun


async def test_engines_that_follow_no_constraints_are_not_asked(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        _, _, violations = await failure(stack.inference().Generate(constrained({"type": "string"})))
        remedy = (
            "its operator can set vllm.structured_output.compiler for the pool, sim.answer if its engine is simulated"
        )
        assert violations == [("sampling.structured_output", f"is not supported by this model; {remedy}")]


async def test_at_best_effort_the_rest_is_enforced_and_what_is_not_is_told(tmp_path: Path) -> None:
    engine = PickyEngine()
    told = [types.UnenforcedKeyword(place="#/not", keyword="not", reason=WORDS)]
    async with running_stack(tmp_path, engine=lambda: engine) as stack:
        asked = constrained({"type": "string", "not": {}}, best_effort=True)
        asked.idempotency_key = "once"
        whole = await stack.inference().Generate(asked)
        assert list(whole.unenforced) == told
        events = [event async for event in stack.inference().StreamGenerate(api.StreamGenerateRequest(generate=asked))]
        assert list(events[-1].finished.unenforced) == told
        followed = await stack.inference().Generate(constrained({"type": "string"}, best_effort=True))
        assert not followed.unenforced
    # The second call got the stored result of the first.
    strict = StructuredOutput(ConstraintKind.JSON_SCHEMA, '{"type": "string"}')
    assert engine.begun == [strict, strict]


async def test_nothing_is_left_to_chance_while_no_replica_can_judge_a_schema_at_best_effort(tmp_path: Path) -> None:
    engine = PickyEngine()
    async with running_stack(tmp_path, engine=lambda: engine) as stack:
        await stack.inference().Generate(constrained({"type": "string"}))
        await stack.kill_replica()
        await until(lambda: not stack.routers[0].pools["demo"].replicas.connected())
        code, reason, _ = await failure(stack.inference().Generate(constrained({"not": {}}, best_effort=True)))
        assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "NO_REPLICA")


async def test_another_replica_judges_where_the_one_that_is_asked_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, asked = ReplicaLink.judge, list[str]()

    async def first_goes(self: ReplicaLink, constraint: Any) -> Judgement:
        asked.append(self.replica_id)
        if 1 == len(asked):
            raise LinkLostError("the replica closed the link")
        return await judge(self, constraint)

    monkeypatch.setattr(ReplicaLink, "judge", first_goes)
    async with running_stack(tmp_path, replicas=2, engine=PickyEngine) as stack:
        await stack.inference().Generate(constrained({"type": "string"}, best_effort=True))
    assert {"demo-r0", "demo-r1"} == set(asked)


async def test_best_effort_is_for_schemas_only(tmp_path: Path) -> None:
    asked = request(structured_output={"regex": "a", "best_effort": True})
    async with running_stack(tmp_path, engine=PickyEngine) as stack:
        _, _, violations = await failure(stack.inference().Generate(asked))
    assert [field for field, _ in violations] == ["sampling.structured_output.best_effort"]


async def test_a_job_takes_a_schema_at_best_effort_and_its_result_tells_what_was_not_enforced(tmp_path: Path) -> None:
    async def parts() -> AsyncIterator[jobs.SubmitJobRequest]:
        yield jobs.SubmitJobRequest(header=jobs.JobHeader(model="demo"))
        item = jobs.JobItem(custom_id="q", request=constrained({"not": {}}, best_effort=True))
        yield jobs.SubmitJobRequest(items=jobs.JobItems(items=[item]))

    async with running_stack(tmp_path, engine=PickyEngine) as stack:
        job = await stack.jobs().SubmitJob(parts())
        watched = stack.jobs().WatchJob(jobs.WatchJobRequest(job_id=job.job.job_id))
        results = [result async for update in watched for result in update.results]
    assert [each.keyword for result in results for each in result.response.unenforced] == ["not"]


STRUCTURE = {"begin": "<call=f>", "json_schema": '{"type": "integer"}', "end": "</call>"}


def tagged(*structures: dict[str, str], triggers: tuple[str, ...] = ("<call=",), **more: Any) -> Any:
    return request(structured_output={"structural_tag": {"structures": structures, "triggers": triggers}, **more})


async def test_a_structural_tag_reaches_the_engine_whole(tmp_path: Path) -> None:
    engine = PickyEngine()
    async with running_stack(tmp_path, engine=lambda: engine) as stack:
        await stack.inference().Generate(tagged(STRUCTURE))
    tag = StructuralTag((TaggedSchema("<call=f>", '{"type": "integer"}', "</call>"),), ("<call=",))
    assert engine.begun == [StructuredOutput(ConstraintKind.STRUCTURAL_TAG, tag=tag)]


async def test_a_refused_schema_in_a_structural_tag_is_named_with_its_place(tmp_path: Path) -> None:
    engine = PickyEngine()
    bad = {**STRUCTURE, "begin": "<call=g>", "json_schema": '{"not": {}}'}
    async with running_stack(tmp_path, engine=lambda: engine) as stack:
        _, _, violations = await failure(stack.inference().Generate(tagged(STRUCTURE, bad)))
        assert [field for field, _ in violations] == [
            "sampling.structured_output.structural_tag.structures[1].json_schema"
        ]
        assert not engine.begun
        answer = await stack.inference().Generate(tagged(STRUCTURE, bad, best_effort=True))
    assert [each.place for each in answer.unenforced] == ["structures[1]#/not"]
    assert engine.begun[0].tag is not None
    assert [each.schema for each in engine.begun[0].tag.structures] == ['{"type": "integer"}', "{}"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (tagged(), "structures"),
        (tagged(STRUCTURE, triggers=()), "triggers"),
        (tagged(STRUCTURE, triggers=("<tool",)), "structures[0].begin"),
        (tagged(STRUCTURE, triggers=("<call=", "<tool")), "triggers[1]"),
        (tagged(STRUCTURE, triggers=("<call=", "<call=f")), "triggers[1]"),
        (tagged(STRUCTURE, STRUCTURE), "structures"),
        (tagged({**STRUCTURE, "end": ""}), "structures[0].end"),
        (tagged({**STRUCTURE, "json_schema": "{"}), "structures[0].json_schema"),
        (tagged({**STRUCTURE, "json_schema": '"%s"' % ("x" * 70_000)}), "structures"),
    ],
)
def test_a_structural_tag_that_is_not_well_formed_is_refused(asked: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_request(asked, RequestLimits())
    assert f"sampling.structured_output.structural_tag.{field}" in {each.field for each in caught.value.violations}


def test_a_structural_tag_does_not_go_with_tools_that_the_model_may_call() -> None:
    asked = tagged(STRUCTURE)
    asked.prompt.chat.messages.add(role="user", content="Hi")
    asked.prompt.chat.tools.add(name="f")
    with pytest.raises(InvalidRequestError, match="tool_choice NONE"):
        check_request(asked, RequestLimits())
    asked.tool_choice.mode = types.TOOL_CHOICE_MODE_NONE
    assert check_request(asked, RequestLimits()).sampling.structured is not None
