"""Embeddings."""

from __future__ import annotations

import base64
import struct
from typing import Any

import openai
import pytest
from openai.types import CreateEmbeddingResponse

from tests.conformance.target import MARKS, Target, named, refused

pytestmark = MARKS
ENDPOINT = ("POST", "/v1/embeddings")
PATH = ENDPOINT[1]


@pytest.fixture
def model(target: Target) -> str:
    """The model that embeds."""
    if not target.embedding_model:
        pytest.skip("no model that embeds (give --embedding-model)")
    return target.embedding_model


@pytest.mark.parametrize(
    ("texts", "count"), [("one", 1), (["one"], 1), (["one", "two"], 2), ([5, 6], 1), ([[5, 6], [7]], 2)]
)
async def test_a_form_of_input_is_taken(target: Target, model: str, texts: Any, count: int) -> None:
    found = CreateEmbeddingResponse.model_validate(await target.ok(PATH, {"model": model, "input": texts}), strict=True)
    assert [each.index for each in found.data] == [*range(count)]
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


async def test_base64_is_the_same_vector(target: Target, model: str) -> None:
    body = {"model": model, "input": "some text"}
    plain = (await target.ok(PATH, body))["data"][0]["embedding"]
    packed = base64.b64decode((await target.ok(PATH, {**body, "encoding_format": "base64"}))["data"][0]["embedding"])
    assert struct.unpack(f"<{len(plain)}f", packed) == pytest.approx(plain)


async def test_the_sdk_reads_vectors(lax: openai.AsyncOpenAI, model: str) -> None:
    found = await lax.embeddings.create(model=model, input=["one", "two"])
    assert all(isinstance(number, float) for each in found.data for number in each.embedding)


@pytest.mark.parametrize("field", ["dimensions", "encoding_format", "user"])
async def test_a_field_may_be_null(target: Target, model: str, field: str) -> None:
    await target.ok(PATH, {"model": model, "input": "one", field: None})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["one", 5]}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": -1}, "dimensions"),
        ({"dimensions": "x"}, "dimensions"),
    ],
    ids=named,
)
async def test_a_wrong_field_is_refused_and_named(
    target: Target, model: str, fields: dict[str, Any], param: str
) -> None:
    refused(await target.post(PATH, {"model": model, "input": "one", **fields}), 400, param)


async def test_an_unknown_model_is_not_found(target: Target) -> None:
    refused(await target.post(PATH, {"model": "no-such-model", "input": "one"}), 404)
