"""Ids of answers over HTTP, by which the requests behind them are explained."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from penstock import AsyncClient
from penstock.client import NotFoundError
from tests.router.embeddings.conftest import pool
from tests.router.http.test_openai import post
from tests.support.stack import Stack, running_stack, sim_pool
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK = {"model": "texts", "input": "Hello", "max_output_tokens": 3}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    pools = {
        "texts": sim_pool(),
        "vectors": pool("embed"),
        "classes": pool("classify", size=3),
        "pairs": pool("classify", size=1),
    }
    async with running_stack(tmp_path_factory.mktemp("stack"), pools=pools, router={"http": {"port": 0}}) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "texts", "messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/completions", {"model": "texts", "prompt": ["Hello", "you"]}),
        ("/v1/messages", {"model": "texts", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}),
        ("/v1/embeddings", {"model": "vectors", "input": "Hello"}),
        ("/v1/classify", {"model": "classes", "input": "Hello"}),
        ("/v1/score", {"model": "pairs", "text_1": "Hello", "text_2": "you"}),
        ("/v1/rerank", {"model": "pairs", "query": "Hello", "documents": ["you", "world"]}),
        ("/v1/responses", ASK),
        ("/v1/responses", {**ASK, "background": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
async def test_the_id_of_an_answer_finds_its_request(stack: Stack, path: str, body: dict[str, Any]) -> None:
    status, answer, _ = await post(stack, path, json=body)
    assert 200 == status

    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client:

        async def found() -> bool:
            with suppress(NotFoundError):
                return [call.pool for call in (await client.explain(answer["id"])).calls] == [body["model"]]
            return False

        await until(found)
