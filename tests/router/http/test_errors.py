"""Errors name the fields of a body, not those of the gRPC API."""

from __future__ import annotations

import pytest

from cluster.errors import InvalidRequestError, ModelChangedError, UnavailableError
from router.http.errors import http_error


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
        ("prompt.chat.messages[2].tool_calls[0].arguments", "messages[2].tool_calls[0].function.arguments"),
        ("prompt.chat.messages[2].tool_calls[0].id", "messages[2].tool_calls[0].id"),
        ("prompt.chat.tools[1].parameters", "tools[1].function.parameters"),
        ("prompt.chat.tools", "tools"),
        ("prompt.chat.documents[0]", "documents[0]"),
        ("prompt.chat.template_kwargs.tools", "chat_template_kwargs.tools"),
        ("tool_choice.names[0]", "tool_choice"),
        ("reasoning.effort", "reasoning_effort"),
        ("reasoning.include", "include_reasoning"),
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
