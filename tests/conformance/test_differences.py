"""The list of differences, and vLLM's own server against it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.conformance.differences import FOLDER, README, VLLM, read_differences, table, with_table

ROOT = FOLDER.parents[1]
START_S = 300
KEY = "secret"
GENERATION = (
    *("--max-model-len", "1024", "--no-enable-chunked-prefill"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
"""What the demo model needs beside what all models do."""
SERVER = (
    *("--host", "127.0.0.1", "--dtype", "float32", "--block-size", "32", "--enforce-eager"),
    *("--kv-cache-memory-bytes", str(256 << 20), "--max-num-seqs", "64"),
    *("--distributed-executor-backend", "mp", "--api-key", KEY, "--enable-request-id-headers"),
    *("--enable-tokenizer-info-endpoint", "--allowed-origins", '["https://app.example.com"]'),
)


def test_the_readme_has_the_table_of_differences() -> None:
    """`python -m tests.conformance.differences` writes it."""
    text = README.read_text(encoding="utf-8")
    assert with_table(text, table(read_differences(VLLM))) == text


def test_each_case_is_a_test() -> None:
    for each in read_differences(VLLM):
        for case in each.cases:
            file, _, name = case.partition("[")[0].partition("::")
            assert f"async def {name}(" in (FOLDER / file).read_text(encoding="utf-8"), case


@asynccontextmanager
async def vllm(model: Path, log: Path, *more: str) -> AsyncIterator[str]:
    """Run vLLM's server; yield its address."""
    from cluster.addresses import free_port
    from cluster.bootstrap.process import ChildProcess
    from loadtest.benchmarks.tokens.paths import engine_environment

    port = free_port("127.0.0.1")
    base = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "demo", "--port", str(port), *SERVER, *more]
    server = await ChildProcess.start("vllm", command, log, engine_environment())
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(START_S):
            while True:
                server.check()
                try:
                    async with session.get(f"{base}/health") as reply:
                        if reply.status == 200:
                            break
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.2)
        yield base
    finally:
        await server.stop(30.0)


@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", ["generate", "embed", "classify"])
async def test_vllms_own_server_differs_as_listed(pytestconfig: pytest.Config, task: str, tmp_path: Path) -> None:
    """Where it does not differ any more the list is wrong too."""
    if pytestconfig.getoption("--base-url", "") or importlib.util.find_spec("vllm") is None:
        pytest.skip("another server is tested")
    from deployments.engines.factory import resolve_model
    from tests.support.pooling_models import make_classifier, minilm

    model, files, options = Path(resolve_model("demo")), ["."], []
    if task == "embed":
        model, files = minilm(), ["test_embeddings.py", "test_scores.py"]
        options = ["--embedding-model", "demo"]
    elif task == "classify":
        model, files = make_classifier(tmp_path / "model", ("calm", "angry", "sad")), ["test_scores.py"]
        options = ["--classifier-model", "demo"]
    async with vllm(model, tmp_path / "vllm.log", *(GENERATION if task == "generate" else ())) as base:
        child = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-m",
                "not node",
                "--confcutdir",
                str(FOLDER),
            ),
            *("--base-url", base, "--model", "demo", "--api-key", KEY, "--origin", "https://app.example.com"),
            *("--differences", str(VLLM), *options, *(str(FOLDER / file) for file in files)),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await child.communicate()
    assert child.returncode == 0, said.decode()[-6000:]
