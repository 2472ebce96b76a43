"""What depends on the model is settled or refused, never silently changed."""

from dataclasses import replace

import pytest

from cluster.errors import InvalidRequestError
from cluster.models import ModelInfo
from penstock.models import Capabilities, ConstraintKind, RequestClass, SamplingParams, StructuredOutput
from router.validation import CheckedRequest, TextPrompt, TokenPrompt, choice_sampling, resolve

MODEL = ModelInfo(
    digest="d",
    tokenizer_digest="t",
    max_context_tokens=100,
    vocabulary_size=50,
    capabilities=Capabilities(prompt_logprobs=True),
    lora_adapters=("poet",),
)
UNABLE = replace(
    MODEL,
    capabilities=Capabilities(
        logprobs=False, structured_output=False, min_p=False, logit_bias=False, penalties=False, seed=False
    ),
)


def checked(prompt=None, lora_adapter: str = "", n: int = 1, **sampling) -> CheckedRequest:
    return CheckedRequest(
        model="demo",
        prompt=prompt or TextPrompt("hi"),
        sampling=SamplingParams(**{"max_tokens": 0, **sampling}),
        n=n,
        request_class=RequestClass.STANDARD,
        queue_timeout_s=None,
        idempotency_key="",
        lora_adapter=lora_adapter,
        session_id="",
    )


def refused(request: CheckedRequest, model: ModelInfo = MODEL, prompt_tokens: int = 10) -> dict[str, str]:
    with pytest.raises(InvalidRequestError) as caught:
        resolve(request, model, prompt_tokens)
    return {violation.field: violation.description for violation in caught.value.violations}


def test_max_tokens_defaults_to_the_rest_of_the_context():
    params, n = resolve(checked(n=3), MODEL, 10)

    assert (params.max_tokens, n) == (90, 3)


def test_an_explicit_max_tokens_is_kept_up_to_the_rest_of_the_context():
    assert resolve(checked(max_tokens=90), MODEL, 10)[0].max_tokens == 90


def test_max_tokens_beyond_the_context_is_refused_with_both_numbers():
    description = refused(checked(max_tokens=91))["sampling.max_tokens"]

    assert "at most 90" in description
    assert "10 + 91 > 100" in description


def test_a_prompt_that_leaves_no_room_is_refused_with_its_length():
    assert resolve(checked(), MODEL, 99)[0].max_tokens == 1
    description = refused(checked(), prompt_tokens=100)["prompt"]
    assert "100 tokens > 99 maximum" in description


def test_a_prompt_without_tokens_is_refused():
    """An empty text on a tokenizer that adds no special token leaves the model nothing to start from."""
    assert {"prompt"} == set(refused(checked(), prompt_tokens=0))


def test_min_tokens_is_bounded_by_what_the_default_max_tokens_became():
    assert resolve(checked(min_tokens=90), MODEL, 10)[0].min_tokens == 90
    assert {"sampling.min_tokens"} == set(refused(checked(min_tokens=91)))


def test_ids_outside_the_vocabulary_are_refused_by_position():
    request = checked(TokenPrompt((1, 50, 2, 51)), stop_token_ids=(50,), logit_bias={7: 1.0, 60: 1.0}, top_k=51)

    assert {
        "prompt.tokens.ids[1]",
        "prompt.tokens.ids[3]",
        "sampling.stop_token_ids[0]",
        "sampling.logit_bias[60]",
        "sampling.top_k",
    } == set(refused(request))


def test_ids_inside_the_vocabulary_pass():
    resolve(checked(TokenPrompt((0, 49)), stop_token_ids=(49,), logit_bias={49: 1.0}, top_k=50), MODEL, 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_p", 0.1),
        ("presence_penalty", -0.1),
        ("frequency_penalty", 0.1),
        ("repetition_penalty", 1.1),
        ("seed", 0),
        ("logprobs", 0),
        ("prompt_logprobs", 0),
        ("logit_bias", {1: 1.0}),
    ],
)
def test_what_the_engines_cannot_do_is_refused(field: str, value: object):
    resolve(checked(**{field: value}), MODEL, 10)
    assert {f"sampling.{field}"} == set(refused(checked(**{field: value}), UNABLE))


def test_structured_output_needs_the_capability():
    request = checked(structured=StructuredOutput(ConstraintKind.REGEX, "a"))

    resolve(request, MODEL, 10)
    assert {"sampling.structured_output"} == set(refused(request, UNABLE))


def test_a_plain_request_needs_no_capability():
    resolve(checked(), UNABLE, 10)


def test_more_log_probabilities_than_the_engines_give_are_refused():
    model = replace(MODEL, capabilities=Capabilities(max_logprobs=5))

    resolve(checked(logprobs=5), model, 10)
    assert {"sampling.logprobs"} == set(refused(checked(logprobs=6), model))
    assert {"sampling.prompt_logprobs"} == set(
        refused(
            checked(prompt_logprobs=6), replace(model, capabilities=Capabilities(max_logprobs=5, prompt_logprobs=True))
        )
    )


def test_a_prompt_has_a_bounded_number_of_log_probabilities():
    model = replace(MODEL, max_context_tokens=200_000)
    resolve(checked(prompt_logprobs=0), model, 131_072)
    resolve(checked(prompt_logprobs=20), model, 131_072 // 21)
    assert (
        "at most 0 with 100000 prompt tokens, got 20: 2100000 log probabilities, of 131072"
        in (refused(checked(prompt_logprobs=20), model, 100_000)["sampling.prompt_logprobs"])
    )
    assert (
        "must not be set with more than 131072 prompt tokens, got 131073"
        in (refused(checked(prompt_logprobs=0), model, 131_073)["sampling.prompt_logprobs"])
    )


def test_only_the_first_choice_asks_for_the_prompt():
    params = SamplingParams(max_tokens=1, prompt_logprobs=3)
    assert [3, None, None] == [choice_sampling(params, index).prompt_logprobs for index in range(3)]


def test_adapters_must_be_known():
    resolve(checked(lora_adapter="poet"), MODEL, 10)
    assert "'poet'" in refused(checked(lora_adapter="painter"))["lora_adapter"]


def test_each_choice_has_its_own_seed():
    params = SamplingParams(max_tokens=1, seed=2**63 - 1)

    assert choice_sampling(params, 0).seed == 2**63 - 1
    assert choice_sampling(params, 1).seed == -(2**63)
    assert choice_sampling(replace(params, seed=None), 3).seed is None
