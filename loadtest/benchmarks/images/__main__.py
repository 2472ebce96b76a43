"""Time to the first token after an image: `python -m loadtest.benchmarks.images MODEL` prints a table.

It runs vLLM's own HTTP server and a whole Penstock cluster with the same model, and asks them in turns. Penstock asks a
replica what images of a new size become before a request waits in line, so known and new sizes are apart.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cluster.addresses import free_port
from cluster.bootstrap.local import LocalCluster
from cluster.bootstrap.process import ChildProcess
from cluster.settings import load_settings
from loadtest.benchmarks.ending import end
from loadtest.benchmarks.tokens.paths import (
    DTYPE,
    KV_MB,
    check,
    engine_environment,
    engine_flags,
    http_session,
    wait_http,
)

NAME = "eye"
KNOWN, NEW, TEXT = "an image of a known size", "an image of a new size", "no image"
_SIDES = (1_600, 1_200)
_STEP = 7
"""Pixels by which new sizes differ."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder or hub id of a model that takes images")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    console = Console()
    figures = asyncio.run(_bench(options.model, options.rounds, console))
    table = Table("until the first token", "vLLM, ms", "Penstock, ms", "ratio")
    for name, (there, here, ratio) in figures.items():
        table.add_row(name, f"{there:.1f}", f"{here:.1f}", f"{ratio:.2f}")
    console.print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


async def _bench(model: str, rounds: int, console: Console) -> dict[str, tuple[float, float, float]]:
    async with AsyncExitStack() as stack:
        with console.status("starting both"):
            servers = [await stack.enter_async_context(opened) for opened in (_vllm(model), _penstock(model))]
        files = _Files()
        for server in servers:
            await _first(server, files.of_known())
            await _first(server, None)
        times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in (TEXT, KNOWN, NEW)}
        for _ in track(range(rounds), "rounds", console=console):
            # In turns, so that other work on the machine hits both alike.
            for name, found in times.items():
                for server, of_server in zip(servers, found, strict=True):
                    image = None if name == TEXT else files.of_known() if name == KNOWN else files.of_new()
                    of_server.append(await _first(server, image))
    return {name: _compared(*found) for name, found in times.items()}


def _compared(there: list[float], here: list[float]) -> tuple[float, float, float]:
    """Return both medians in milliseconds, and the median of the rounds' ratios."""
    ratios = [ours / theirs for ours, theirs in zip(here, there, strict=True)]
    return 1000 * statistics.median(there), 1000 * statistics.median(here), statistics.median(ratios)


class _Files:
    """Images of which none comes twice, so that no cache knows one."""

    def __init__(self) -> None:
        self._numbers = self._count()

    def of_known(self) -> bytes:
        """Return an image of the size of all known ones."""
        return _file(*_SIDES, next(self._numbers))

    def of_new(self) -> bytes:
        """Return an image of a size that no other one has."""
        number = next(self._numbers)
        return _file(_SIDES[0] + _STEP * number, _SIDES[1] + number, number)

    @staticmethod
    def _count() -> Iterator[int]:
        number = 0
        while True:
            number += 1
            yield number


def _file(width: int, height: int, number: int) -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (width, height), (number % 256, number // 256 % 256, 128)).save(written, "JPEG")
    return written.getvalue()


async def _first(server: aiohttp.ClientSession, image: bytes | None) -> float:
    """Return the time to a first token in seconds."""
    content: list[object] = [{"type": "text", "text": "What is this?"}]
    if image is not None:
        url = f"data:image/jpeg;base64,{base64.b64encode(image).decode()}"
        content.append({"type": "image_url", "image_url": {"url": url}})
    body = {"model": NAME, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}
    began = time.perf_counter()
    async with server.post("/v1/chat/completions", json=body) as reply:
        await check(reply)
        await reply.read()
    return time.perf_counter() - began


@asynccontextmanager
async def _vllm(model: str) -> AsyncIterator[aiohttp.ClientSession]:
    port = free_port("127.0.0.1")
    words = (
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", NAME),
        *("--host", "127.0.0.1", "--port", str(port), *engine_flags()),
        *("--uvicorn-log-level", "warning", "--disable-uvicorn-access-log"),
    )
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "http.log"
        server = await ChildProcess.start("vllm http", list(words), log, engine_environment())
        async with http_session(port) as session:
            try:
                await wait_http(session, server)
                yield session
            finally:
                await server.stop(30.0)


@asynccontextmanager
async def _penstock(model: str) -> AsyncIterator[aiohttp.ClientSession]:
    vllm = {"dtype": DTYPE, "max_model_len": 1_024, "kv_cache_memory_mb": KV_MB, "block_size": 32}
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(
            flags={
                "cluster": {"state_dir": folder, "log_level": "warning"},
                "router": {"port": 0, "http": {"port": 0}},
                "pools": {NAME: {"model": model, "vllm": vllm}},
            }
        )
        async with (
            LocalCluster(settings, lambda step, text: None) as cluster,
            http_session(cluster.routers[0].http_port) as session,
        ):
            yield session


if __name__ == "__main__":
    end("bench-images", main)
