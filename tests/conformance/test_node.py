"""The official SDKs for Node.js, which npm installs into a temporary folder."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from tests.conformance.target import Target

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.node, pytest.mark.timeout(300)]

SOURCES = Path(__file__).parent / "node"
NO_REGISTRY = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH", "E403")
"""What npm says where it can't reach its registry."""


async def run(*command: str, folder: Path, **environment: str) -> tuple[int, str]:
    """Run a program to its end; return its status and what it said."""
    child = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await child.communicate()
    return child.returncode or 0, said.decode(errors="replace")


async def test_the_official_sdks_for_node_work(target: Target, tmp_path: Path) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        if os.environ.get("CI") == "true":
            pytest.fail("Node.js is not installed")
        pytest.skip("Node.js is not installed")
    for name in ("package.json", "package-lock.json", "sdks.test.mjs"):
        shutil.copy(SOURCES / name, tmp_path / name)
    status, said = await run(
        *(npm, "ci", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=30000"), folder=tmp_path
    )
    if status and any(code in said for code in NO_REGISTRY):
        pytest.skip(f"npm can't reach its registry, so the SDKs were not tried: {said.strip()[-200:]}")
    assert status == 0, said
    status, said = await run(
        *(node, "--test"),
        folder=tmp_path,
        BASE_URL=target.base,
        MODEL=target.model,
        TOOL_MODEL=target.tool_model,
        EMBEDDING_MODEL=target.embedding_model,
        IMAGE_MODEL=target.image_model,
        API_KEY=target.key,
        SIMULATED="1" if target.simulated else "",
    )
    assert status == 0, said[-6000:]
