"""Tiers: how urgent a request is."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from tests.conformance.target import ASK, CHAT, MARKS, TEXT, Target, refused

pytestmark = MARKS
TIERS = ("auto", "default", "flex", "priority")
each_tier = pytest.mark.parametrize("tier", TIERS)


def used(tier: str) -> str:
    """Return the tier that an answer names."""
    return "default" if tier == "auto" else tier


@each_tier
async def test_an_answer_names_the_tier_that_served_it(target: Target, tier: str) -> None:
    found = await target.ok(CHAT, target.chat(service_tier=tier))
    assert ChatCompletion.model_validate(found).service_tier == used(tier)


@each_tier
async def test_a_stream_names_the_tier_that_served_it(target: Target, tier: str) -> None:
    assert {chunk["service_tier"] for chunk in await target.chunks(CHAT, target.chat(service_tier=tier))} == {
        used(tier)
    }


@each_tier
@pytest.mark.parametrize("path", [TEXT, "/v1/responses", "/v1/embeddings"])
async def test_a_tier_is_taken(target: Target, path: str, tier: str) -> None:
    body: dict[str, Any] = {"model": target.model, "prompt": "x", "max_tokens": 1}
    if path == "/v1/responses":
        body = {"model": target.model, "input": "x", "max_output_tokens": 16}
    elif path == "/v1/embeddings":
        if not target.embedding_model:
            pytest.skip("no model that embeds (give --embedding-model)")
        body = {"model": target.embedding_model, "input": "x"}
    found = await target.ok(path, {**body, "service_tier": tier})
    if path == "/v1/responses":
        assert found["service_tier"] == used(tier)


@pytest.mark.parametrize("tier", ["auto", "standard_only"])
async def test_a_tier_of_anthropic_is_taken(target: Target, tier: str) -> None:
    body = {"model": target.model, "messages": ASK, "max_tokens": 4, "service_tier": tier}
    reply = await target.post("/v1/messages", body)
    if reply.status == 404 and not target.complete:
        pytest.skip("the server has no /v1/messages")
    assert reply.status == 200, reply.body


@pytest.mark.parametrize("tier", ["gold", 5, ["flex"]])
@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/responses"])
async def test_an_unknown_tier_is_refused_and_named(target: Target, path: str, tier: Any) -> None:
    body: dict[str, Any] = {"model": target.model, "input": "x"}
    if path != "/v1/responses":
        body = target.chat() if path == CHAT else target.text()
    refused(await target.post(path, {**body, "service_tier": tier}), 400, "service_tier")
