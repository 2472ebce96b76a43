"""A cluster with a pool for each task, on simulated engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from penstock import AsyncClient
from tests.support.stack import Stack, running_stack, sim_pool

VECTOR_SIZE = 8
CONTEXT = 512


def pool(task: str, *, size: int = VECTOR_SIZE, **sim: Any) -> dict[str, Any]:
    """Describe a pool of simulated engines with a task."""
    return {**sim_pool(vector_size=size, max_model_len=CONTEXT, **sim), "task": task}


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


@pytest.fixture
def target(stack: Stack) -> str:
    return f"127.0.0.1:{stack.routers[0].port}"


@pytest_asyncio.fixture(loop_scope="module")
async def client(target: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(target) as open_client:
        yield open_client
