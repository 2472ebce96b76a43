"""Errors over HTTP: fields have the names of a body, and retries the times of gRPC."""

from __future__ import annotations

import pytest
from google.rpc import code_pb2, error_details_pb2

from cluster.errors import (
    GenerationFailedError,
    InvalidRequestError,
    JobExistsError,
    KeyReusedError,
    ModelChangedError,
    PenstockError,
    QuotaExceededError,
    UnauthenticatedError,
    UnavailableError,
)
from router.http.bodies import name_in
from router.http.errors import http_error
from router.http.responses.places import place_of
from router.status import to_rpc_status
from tests.router.test_status import CASES


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("model", "model"),
        ("prompt", "prompt"),
        ("prompt.tokens.ids[3]", "prompt[3]"),
        ("sampling.max_tokens", "max_tokens"),
        ("sampling.structured_output.json_schema", "response_format"),
        ("prompt.chat.messages[2].content", "messages[2].content"),
        ("prompt.chat.messages[2].parts[1]", "messages[2].content[1]"),
        ("prompt.chat.messages[2].parts[1].text", "messages[2].content[1].text"),
        ("prompt.chat.messages[2].parts[1].image", "messages[2].content[1]"),
        ("prompt.chat.messages[2].parts[1].image.data", "messages[2].content[1]"),
        ("prompt.chat.messages[2].tool_calls[0].arguments", "messages[2].tool_calls[0].function.arguments"),
        ("prompt.chat.messages[2].tool_calls[0].id", "messages[2].tool_calls[0].id"),
        ("prompt.chat.tools[1].parameters", "tools[1].function.parameters"),
        ("prompt.chat.tools", "tools"),
        ("prompt.chat.documents[0]", "documents[0]"),
        ("prompt.chat.template_kwargs.tools", "chat_template_kwargs.tools"),
        ("tool_choice.names[0]", "tool_choice"),
        ("reasoning.effort", "reasoning_effort"),
        ("reasoning.include", "include_reasoning"),
        ("idempotency_key", "Idempotency-Key"),
        ("resume.received_tokens[0]", "Last-Event-ID"),
        ("probabilities", "use_activation"),
    ],
)
def test_a_field_has_the_bodys_name(field: str, expected: str) -> None:
    error = http_error(InvalidRequestError.of(field, "is wrong"))
    assert (expected, f"{expected}: is wrong") == (error.field, error.message)


@pytest.mark.parametrize(
    ("error", "expected"), [(ModelChangedError("q"), "false"), (UnavailableError("gone for now", 1.0), "true")], ids=str
)
def test_ids_of_a_model_that_has_gone_are_not_sent_again(error: UnavailableError, expected: str) -> None:
    """A client that repeats its request as it is would send another text."""
    told = http_error(error)
    assert (503, expected) == (told.status, told.headers()["x-should-retry"])


@pytest.mark.parametrize(
    ("error", "came_back", "status", "field"),
    [
        (GenerationFailedError.gone("r", 3, 5.0), True, 404, "Last-Event-ID"),
        (GenerationFailedError("r", 3), True, 500, None),
        # It began here, and can't go on elsewhere.
        (GenerationFailedError("r", 3, 0, detail="the pool's model changed"), False, 500, None),
    ],
    ids=str,
)
def test_only_output_that_a_client_comes_back_for_is_not_found(
    error: GenerationFailedError, came_back: bool, status: int, field: str | None
) -> None:
    told = http_error(error, came_back=came_back)
    assert (status, field) == (told.status, told.field)


@pytest.mark.parametrize("error", [KeyReusedError("k", "r"), JobExistsError("k", "j")], ids=str)
def test_an_error_about_the_key_names_its_header(error: KeyReusedError | JobExistsError) -> None:
    assert "Idempotency-Key" == http_error(error).field


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("sampling.structured_output.json_schema", "text.format.schema"),
        ("sampling.structured_output", "text.format"),
        ("sampling.max_tokens", "max_output_tokens"),
        ("reasoning.effort", "reasoning.effort"),
        ("verbosity", "text.verbosity"),
        ("prompt.chat.tools[1].function.name", "tools[1].name"),
        ("messages", "input"),
        ("model", "model"),
    ],
)
def test_a_field_has_the_name_of_the_responses_api(field: str, expected: str) -> None:
    assert expected == place_of(field)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("queries", "text_1"),
        ("queries[3].text", "text_1[3]"),
        ("queries_of_others", "queries_of_others"),
        ("sampling.structured_output.regex", "guided_regex"),
        ("model", "model"),
    ],
)
def test_a_name_keeps_its_index_alone(field: str, expected: str) -> None:
    assert expected == name_in({"queries": "text_1", "sampling.structured_output*": "guided_regex"}, field)


def test_who_is_not_known_is_told_how_to_say_who_it_is() -> None:
    told = http_error(UnauthenticatedError("the API key is not known")).headers()
    assert {"x-should-retry": "false", "www-authenticate": "Bearer"} == told


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("concurrency", "tenant 'acme' may have 2 requests at once in 'demo'; retry in 1.0 s"),
        ("tokens_per_minute", "tenant 'acme' may use 2 tokens per minute of 'demo'; retry in 1.0 s"),
    ],
)
def test_a_quota_is_a_sentence(quota: str, expected: str) -> None:
    assert expected == http_error(QuotaExceededError("demo", "acme", quota, 2, 1.0)).message


@pytest.mark.parametrize("error", [case[0] for case in CASES], ids=lambda error: type(error).__name__)
def test_http_tells_of_a_retry_what_grpc_tells(error: PenstockError) -> None:
    """Ids of a model that has gone are the exception: clients of HTTP APIs would send the same ones again."""
    status = to_rpc_status(error)
    retry, wait_ms = error_details_pb2.RetryInfo(), None
    if any(detail.Unpack(retry) for detail in status.details) and not isinstance(error, ModelChangedError):
        wait_ms = str(round(1000 * retry.retry_delay.ToTimedelta().total_seconds()))
    found = http_error(error)
    headers = found.headers()
    assert code_pb2.Code.Name(status.code) == found.counted
    assert ("true" if wait_ms else "false", wait_ms) == (headers["x-should-retry"], headers.get("retry-after-ms"))
    assert wait_ms is None or found.status in (429, 503)
