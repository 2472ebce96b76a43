"""One stack of processes for all tests that run pods."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.k8s.kubelet.cluster import Kubelet
from tests.k8s.kubelet.stack import running_kubelet


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def kubelet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Kubelet]:
    """Run the rendered pods."""
    async with running_kubelet(tmp_path_factory.mktemp("kubelet")) as running:
        yield running
