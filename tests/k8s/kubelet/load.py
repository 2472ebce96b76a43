"""Calls routers as clients do that balance by themselves, and remembers every failure. Nothing is tried again."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

from penstock.v1 import inference_pb2_grpc
from tests.k8s.kubelet.pod import TURN_S
from tests.support.stack import collect, ids_of, stream_request

TOKENS = 40


class Load:
    """Keeps so many streams open. Endpoints are known to it a moment late, as they are in a cluster.

    Looks are counted, and not seconds: where this process stands still, nobody calls meanwhile.
    """

    def __init__(
        self,
        endpoints: Callable[[], list[str]],
        key: str,
        delay_s: float,
        streams: int = 4,
        tokens: int = TOKENS,
        model: str = "demo",
    ) -> None:
        self.failures: list[str] = []
        self.done = 0
        self._endpoints = endpoints
        self._metadata = (("authorization", f"Bearer {key}"),)
        self._streams = streams
        self._tokens = tokens
        self._model = model
        self._seen: deque[list[str]] = deque([endpoints()], maxlen=1 + round(delay_s / TURN_S))
        """What the last looks found, the oldest first."""
        self._turn = itertools.count()
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._watch())]
        self._tasks += [asyncio.create_task(self._go_on()) for _ in range(self._streams)]
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _watch(self) -> None:
        while not self._stop.is_set():
            self._seen.append(self._endpoints())
            await asyncio.sleep(TURN_S)

    async def _go_on(self) -> None:
        while not self._stop.is_set():
            known = self._seen[0]
            await self._one(known[next(self._turn) % len(known)])

    async def _one(self, target: str) -> None:
        async with grpc.aio.insecure_channel(target) as channel:
            call = inference_pb2_grpc.InferenceServiceStub(channel).StreamGenerate(
                stream_request(model=self._model, max_tokens=self._tokens, ignore_eos=True),
                metadata=self._metadata,
                timeout=60,
            )
            try:
                ids = ids_of(await collect(call))
                assert len(ids) == self._tokens
                self.done += 1
            except (grpc.aio.AioRpcError, AssertionError) as error:
                self.failures.append(f"{target}: {error}")
            finally:
                call.cancel()
