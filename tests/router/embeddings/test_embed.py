"""Vectors through the whole path: client, router, queue, link, replica, simulated engine."""

from __future__ import annotations

import math

import pytest

from penstock import AsyncClient, InvalidArgumentError
from tests.router.embeddings.conftest import VECTOR_SIZE

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_each_text_gets_its_vector_in_the_order_of_the_request(client: AsyncClient) -> None:
    texts = [f"text number {number}" for number in range(300)]
    all_at_once = await client.embed("vectors", texts)
    assert len(texts) == len(all_at_once.vectors)
    for number in (0, 17, 150, 299):
        alone = await client.embed("vectors", texts[number])
        assert alone.vectors[0] == all_at_once.vectors[number]


async def test_a_vector_has_length_1_unless_its_own_length_is_asked_for(client: AsyncClient) -> None:
    [unit] = (await client.embed("vectors", "hello there")).vectors
    [own] = (await client.embed("vectors", "hello there", normalize=False)).vectors
    assert VECTOR_SIZE == len(unit) == len(own)
    assert pytest.approx(1.0, abs=1e-6) == math.hypot(*unit)
    assert abs(math.hypot(*own) - 1.0) > 1e-3


async def test_usage_and_receipt_count_all_inputs_once(client: AsyncClient) -> None:
    texts = ["a b c", "d", "e f"] * 100
    count = [(await client.count_tokens("vectors", text)).tokens for text in texts[:3]]
    found = await client.embed("vectors", texts)
    assert 100 * sum(count) == found.usage.prompt_tokens
    assert 0 == found.usage.output_tokens
    assert found.receipt.gpu_seconds > 0
    assert 3 == len(found.receipt.attempts)
    assert found.receipt.time_to_first_token is not None


async def test_a_generation_on_a_pool_that_embeds_is_refused_by_name(client: AsyncClient) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must have the task 'generate'.* has 'embed'"):
        await client.generate("vectors", "hello")


async def test_vectors_of_a_pool_that_generates_are_refused_by_name(client: AsyncClient) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must have the task 'embed'.* has 'generate'"):
        await client.embed("texts", "hello")
