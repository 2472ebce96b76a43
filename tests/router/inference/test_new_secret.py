"""The cluster secret is replaced in three steps while requests run, process by process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from cluster.trust import secret as secret_module
from cluster.trust.secret import ClusterSecret
from penstock.v1 import inference_pb2 as api
from tests.support.stack import Stack, request, running_stack, sim_pool
from tests.support.waiting import until

OLD, NEW = "o" * 64, "n" * 64
LONG = request(max_tokens=400, ignore_eos=True)


class Files:
    """The secret's file of each process, as each node has its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: list[Path] = []
        self.content = OLD

    def open(self) -> ClusterSecret:
        """Return the secret of a new process."""
        path = self._folder / f"secret-{len(self._paths)}"
        path.write_text(self.content)
        self._paths.append(path)
        return ClusterSecret.from_file(path)

    async def change(self, content: str, half_way: Callable[[], object]) -> None:
        """Change one file after the other, and start new processes when half of them have changed."""
        paths, self.content = list(self._paths), content
        for number, path in enumerate(paths):
            path.write_text(content)
            # A few requests meet a router and a replica with different files.
            await asyncio.sleep(0.1)
            if number == len(paths) // 2:
                await half_way()  # type: ignore[misc]


async def started(stack: Stack, router: int) -> bytes:
    """Begin a long stream, leave it, and return its resume token."""
    call = stack.inference(router).StreamGenerate(api.StreamGenerateRequest(generate=LONG))
    async for event in call:
        if event.HasField("started"):
            token: bytes = event.started.resume_token
            call.cancel()
            return token
    raise AssertionError("the stream ended without its begin")


async def refusal(stack: Stack, token: bytes) -> str:
    resume = api.StreamGenerateRequest(generate=LONG, resume=api.Resume(resume_token=token))
    try:
        async for _ in stack.inference(0).StreamGenerate(resume):
            return ""
    except grpc.aio.AioRpcError as error:
        return error.details() or ""
    return ""


async def test_a_new_cluster_secret_fails_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_module, "LOOK_S", 0.01)
    files, done = Files(tmp_path), [0]
    pools = {"demo": sim_pool(base_ms=2.0, max_num_seqs=8)}
    async with running_stack(tmp_path / "s", routers=2, replicas=2, pools=pools, secret=files.open) as stack:
        stop = asyncio.Event()

        async def load(number: int) -> None:
            while not stop.is_set():
                router = (number + done[0]) % len(stack.routers)
                answer = await stack.inference(router).Generate(request(f"Question {number}", max_tokens=8))
                assert answer.choices
                done[0] += 1

        clients = [asyncio.create_task(load(number)) for number in range(6)]
        before = await started(stack, 0)
        for content in (f"{OLD}\n{NEW}", f"{NEW}\n{OLD}"):
            # A new process must be able to link to those that have the older file, and they to it.
            await files.change(content, stack.add_replica)
            await files.change(content, stack.add_router)
        assert "was not issued by this cluster" not in await refusal(stack, before)
        during, served = await started(stack, 2), done[0]
        await files.change(NEW, stack.add_replica)
        assert "was not issued by this cluster" in await refusal(stack, before)
        assert "was not issued by this cluster" not in await refusal(stack, during)
        # Every replica's announcement is signed with the new secret by now: a new router trusts them all.
        await stack.add_router()
        await until(lambda: done[0] >= served + 20)
        stop.set()
        await asyncio.gather(*clients)
        assert 5 == len(stack.replicas)
        await until(lambda: all(len(router.pools["demo"].replicas.connected()) == 5 for router in stack.routers))
