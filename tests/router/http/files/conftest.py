from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio

from tests.router.http.files.support import HTTP, base
from tests.support.stack import Stack, running_stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Two routers, so that every step can be taken at another one."""
    async with running_stack(
        tmp_path_factory.mktemp("stack"),
        routers=2,
        router=HTTP,
        sim={"max_model_len": 256},
        jobs={"max_job_items": 2_000, "max_item_bytes": 4_096, "upload_s": 5.0},
    ) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{base(stack)}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def other(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of the other router."""
    async with openai.AsyncOpenAI(base_url=f"{base(stack, 1)}/v1", api_key="none", max_retries=0) as found:
        yield found
