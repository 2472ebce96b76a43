"""Imports vllm, which takes long, so it counts as an engine test."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from cluster.errors import EngineRequestError
from cluster.models import GenerationSpec, ResumeRecord
from deployments.engines.vllm.compilers.tags import TagForm
from penstock.models import ConstraintKind, SamplingParams, StructuredOutput

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def spec(sampling: SamplingParams, prior: int = 0) -> GenerationSpec:
    resume = ResumeRecord(tuple(range(50, 50 + prior)), 0, "") if prior else None
    return GenerationSpec((1, 2, 3), sampling, resume=resume)


def test_every_field_arrives() -> None:
    from vllm.sampling_params import RequestOutputKind

    from deployments.engines.vllm.sampling import to_vllm

    found = to_vllm(
        spec(
            SamplingParams(
                max_tokens=9,
                min_tokens=2,
                temperature=0.5,
                top_p=0.9,
                top_k=7,
                min_p=0.1,
                presence_penalty=0.3,
                frequency_penalty=-0.4,
                repetition_penalty=1.1,
                seed=5,
                stop=("a", "b"),
                stop_token_ids=(4,),
                ignore_eos=True,
                logprobs=2,
                logit_bias={3: -1.5},
            )
        )
    )
    assert (found.max_tokens, found.min_tokens, found.temperature, found.top_p) == (9, 2, 0.5, 0.9)
    assert (found.top_k, found.min_p, found.presence_penalty, found.frequency_penalty) == (7, 0.1, 0.3, -0.4)
    assert (found.repetition_penalty, found.seed, found.stop, found.stop_token_ids) == (1.1, 5, ["a", "b"], [4])
    assert (found.ignore_eos, found.logprobs, found.logit_bias) == (True, 2, {3: -1.5})
    assert found.output_kind == RequestOutputKind.DELTA
    assert found.detokenize


@pytest.mark.parametrize("seed", [-1, 0, -(2**63), 2**63 - 1, None])
def test_every_seed_is_one(seed: int | None) -> None:
    import msgspec
    from vllm.sampling_params import SamplingParams as VllmSamplingParams

    from deployments.engines.vllm.sampling import to_vllm

    found = to_vllm(spec(SamplingParams(max_tokens=9, seed=seed)))
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=VllmSamplingParams)
    # vLLM's word for none is -1.
    assert sent.seed == found.seed
    assert (found.seed is None) == (seed is None)
    if seed != -1:
        assert seed == found.seed


@pytest.mark.parametrize(
    ("constraint", "field", "value"),
    [
        (StructuredOutput(ConstraintKind.JSON_SCHEMA, "{}"), "json", "{}"),
        (StructuredOutput(ConstraintKind.REGEX, "a+"), "regex", "a+"),
        (StructuredOutput(ConstraintKind.CHOICE, choices=("a", "b")), "choice", ["a", "b"]),
        (StructuredOutput(ConstraintKind.GRAMMAR, "root ::= x"), "grammar", "root ::= x"),
    ],
)
def test_constraint_arrives(constraint: StructuredOutput, field: str, value: object) -> None:
    from deployments.engines.vllm.sampling import to_vllm

    assert getattr(to_vllm(spec(SamplingParams(4, structured=constraint))).structured_outputs, field) == value


def test_resume_leaves_the_rest_and_hands_penalties_to_our_processor() -> None:
    from deployments.engines.vllm.sampling import FREQUENCY_KEY, PRESENCE_KEY, PRIOR_KEY, to_vllm

    found = to_vllm(spec(SamplingParams(10, min_tokens=5, presence_penalty=0.5, repetition_penalty=1.3), prior=4))
    assert (found.max_tokens, found.min_tokens) == (6, 1)
    assert (found.presence_penalty, found.repetition_penalty) == (0.0, 1.3)
    assert found.extra_args == {PRIOR_KEY: [50, 51, 52, 53], PRESENCE_KEY: 0.5, FREQUENCY_KEY: 0.0}


def test_resume_that_would_not_be_exact_is_refused() -> None:
    from deployments.engines.vllm.sampling import Resumes, to_vllm

    with pytest.raises(EngineRequestError, match="penalties"):
        to_vllm(spec(SamplingParams(10, presence_penalty=0.5), prior=4), penalties=Resumes.NOBODY)
    repetition = spec(SamplingParams(10, repetition_penalty=1.3), prior=4)
    assert 1.3 == to_vllm(repetition, penalties=Resumes.NOBODY).repetition_penalty
    with pytest.raises(EngineRequestError, match="max_tokens=4"):
        to_vllm(spec(SamplingParams(4), prior=4))


def test_the_second_model_runner_gets_prior_tokens_as_output() -> None:
    from vllm.v1.core.sched.output import NewRequestData

    from deployments.engines.vllm.sampling import Resumes, to_vllm
    from deployments.engines.vllm.scheduler import HandsOutputOver

    class Schedules:
        use_v2_model_runner = True

        def schedule(self) -> Mock:
            return Mock(scheduled_new_reqs=requests)

    class Scheduler(HandsOutputOver, Schedules):
        pass

    def request(sampling: SamplingParams, prior: int) -> NewRequestData:
        params = to_vllm(spec(sampling, prior), penalties=Resumes.RUNNER)
        ids = [1, 2, 3, *range(50, 50 + prior)]
        return NewRequestData("r", ids, [], params, None, ([],), 0, None, prefill_token_ids=list(ids))

    penalised = SamplingParams(10, min_tokens=5, presence_penalty=0.5, frequency_penalty=0.25)
    requests = [request(penalised, 4), request(penalised, 0), request(SamplingParams(10), 4)]
    before = requests[0].sampling_params
    Scheduler().schedule()

    assert [[1, 2, 3], [1, 2, 3], [1, 2, 3, 50, 51, 52, 53]] == [each.prompt_token_ids for each in requests]
    assert [7, 3, 7] == [len(each.prefill_token_ids or ()) for each in requests]
    resumed = requests[0].sampling_params
    assert resumed is not None
    assert (0.5, 0.25) == (resumed.presence_penalty, resumed.frequency_penalty)
    assert (10, 5) == (resumed.max_tokens, resumed.min_tokens)
    # The scheduler's own, which ends the request.
    assert before is not None
    assert (6, 1) == (before.max_tokens, before.min_tokens)


def test_what_is_asked_for_again_is_translated_once() -> None:
    from deployments.engines.vllm.sampling import Resumes, translator

    translate = translator(Resumes.PROCESSOR, TagForm("xgrammar", lambda: None, any_whitespace=False))
    first = translate(spec(SamplingParams(9, temperature=0.5)))

    assert translate(spec(SamplingParams(9, temperature=0.5))) is first
    assert (9, 0.25) == ((other := translate(spec(SamplingParams(9, temperature=0.25)))).max_tokens, other.temperature)
    assert 5 == translate(spec(SamplingParams(9, temperature=0.5), prior=4)).max_tokens
    for bias in (0.5, 1.5):
        assert {7: bias} == translate(spec(SamplingParams(9, logit_bias={7: bias}))).logit_bias


def test_what_vllm_refuses_is_refused_each_time() -> None:
    from deployments.engines.vllm.sampling import Resumes, translator

    translate = translator(Resumes.PROCESSOR, TagForm("xgrammar", lambda: None, any_whitespace=False))
    for _ in range(2):
        with pytest.raises(EngineRequestError, match="top_p"):
            translate(spec(SamplingParams(9, top_p=3.0)))


@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_what_is_no_number_becomes_one(value: float) -> None:
    from deployments.engines.vllm.logprobs import to_positions

    (position,) = to_positions(np.array([[7, 8, 9]]), np.array([[-0.5, -0.25, value]]), np.array([2]), 2)
    assert position.chosen.token_id == 7
    assert [(each.token_id, each.logprob) for each in position.top] == [(8, -0.25), (9, -9999.0)]
    (lost,) = to_positions(np.array([[7]]), np.array([[value]]), np.array([1]), 0)
    assert -9999.0 == lost.chosen.logprob


def test_internals_are_those_that_the_adapter_was_written_for() -> None:
    from deployments.engines.vllm.internals.check import check_internals

    check_internals()
