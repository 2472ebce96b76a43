"""What does not fit the context is told in the words that agents read, and nothing else is."""

from dataclasses import replace

import pytest

from cluster.errors import InvalidRequestError
from penstock.models import ModelTask
from router.http.errors import http_error
from router.validation.pooling import check_lengths
from tests.router.validation.test_resolve import MODEL

EMBEDS = replace(MODEL, task=ModelTask.EMBED)


@pytest.mark.parametrize(
    ("length", "code", "told"),
    [
        (0, "invalid_request", "must have at least 1 token"),
        (101, "context_length_exceeded", "This model's maximum context length is 100 tokens"),
    ],
)
def test_only_an_input_that_is_too_long_is_told_as_that(length: int, code: str, told: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_lengths([5, length], EMBEDS, "inputs")
    error = http_error(caught.value)
    assert (code, "input[1]") == (error.code, error.field)
    assert told in error.message
