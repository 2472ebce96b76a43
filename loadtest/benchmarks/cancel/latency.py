"""The latency of a cancel: until it leaves the router, frees the slot, and reaches the client."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from deployments.replica.output_log import OutputLog
from deployments.replica.replica import Replica
from loadtest.benchmarks.cancel.requests import PROMPTS, fresh_prompt, streamed, stub
from loadtest.benchmarks.cancel.testbed import Stand
from penstock.models import FinishReason
from penstock.v1 import inference_pb2 as api
from router.dispatch.pool import Pool

CLIENTS = 24
STATES = ("queued", "prefill", "decode")
STEP_MS = 25.0
SECTIONS = {
    # Slots for two thirds of the clients, and a prefill of several steps.
    "sim": {"base_ms": STEP_MS, "per_token_us": 2.0, "max_num_seqs": 8, "max_num_batched_tokens": 512},
}


@dataclass(slots=True)
class _Moments:
    """Times in monotonic seconds, and the numbers of engine steps that had ended by then."""

    state: str = ""
    elsewhere: bool = False
    arrived: float = 0.0
    """Arrival of the Cancel call at its router."""
    obeyed: float = 0.0
    """Arrival of the abort at the replica, so it had left the router."""
    freed: float = 0.0
    """Time at which the engine had freed the slot."""
    heard: float = 0.0
    """Time at which the client read the end."""
    step_obeyed: int = 0
    step_freed: int = 0


class _Watch:
    """Recorder of times. It wraps the methods of the pools and the attempt tables."""

    def __init__(self, stand: Stand) -> None:
        self.moments: defaultdict[str, _Moments] = defaultdict(_Moments)
        for pool in stand.pools:
            self._watch_pool(pool)
        for replica in stand.replicas:
            self._watch_replica(replica)

    def _watch_pool(self, pool: Pool) -> None:
        cancel = pool.cancel

        async def noted(tenant: str, target: str, *, by_key: bool) -> str | None:
            self.moments[target].arrived = time.monotonic()
            return await cancel(tenant, target, by_key=by_key)

        pool.cancel = noted  # type: ignore[method-assign]

    def _watch_replica(self, replica: Replica) -> None:
        table, engine = replica.table, replica._engine
        abort, changed = table.abort, table._changed

        async def noted(
            keys: list[tuple[str, str]], reason: FinishReason = FinishReason.CANCELLED, *, final: bool = False
        ) -> None:
            moments = [self.moments[request_id] for request_id, _ in keys]
            for each in moments:
                each.obeyed, each.step_obeyed = time.monotonic(), engine.stats().steps
            await abort(keys, reason, final=final)

        def ended(log: OutputLog, end: bool) -> None:
            changed(log, end)
            if end:
                each = self.moments[log.request_id]
                each.freed, each.step_freed = time.monotonic(), engine.stats().steps

        table.abort = noted  # type: ignore[method-assign]
        table._changed = ended  # type: ignore[method-assign, assignment]


async def run(folder: Path, redis_url: str, cancels: int, progress: Callable[[int], None]) -> dict[str, Any]:
    """Cancel this many requests, half of them through the router that does not have them. Return the figures."""
    stand = Stand(folder, redis_url, SECTIONS)
    await stand.start()
    channels = [grpc.aio.insecure_channel(target) for target in stand.targets]
    watch = _Watch(stand)
    draw = random.Random(2)
    left = iter(range(cancels))

    async def client() -> None:
        for number in left:
            await _one([stub(channel) for channel in channels], watch, draw, number)
            progress(1)

    try:
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    finally:
        for channel in channels:
            await channel.close(None)
        await stand.stop()
    return _figures([each for each in watch.moments.values() if each.heard])


async def _one(inferences: Sequence[Any], watch: _Watch, draw: random.Random, number: int) -> None:
    home, elsewhere, wanted = number % 2, number // 2 % 2, STATES[number // 4 % 3]
    prompt = fresh_prompt(draw, PROMPTS if wanted != "prefill" else 1_500)
    call = inferences[home].StreamGenerate(streamed(prompt))
    state, request_id = "", ""
    while state != wanted:
        kind = (event := await call.read()).WhichOneof("event")
        state = {"started": "prefill", "delta": "decode"}.get(kind, kind)
        if state in ("queued", "prefill"):
            request_id = getattr(event, kind).request_id
        if wanted == "queued":
            # A request that did not have to wait is cancelled in its present state.
            break
    if state != "queued":
        await asyncio.sleep(draw.uniform(0.0, STEP_MS / 1000))
    moments = watch.moments[request_id]
    moments.state, moments.elsewhere = state, bool(elsewhere)
    answer = asyncio.ensure_future(inferences[(home + elsewhere) % 2].Cancel(api.CancelRequest(request_id=request_id)))
    while not event.HasField("finished"):
        event = await call.read()
    moments.heard = time.monotonic()
    await answer


def _figures(measured: Sequence[_Moments]) -> dict[str, Any]:
    figures = {}
    for name, elsewhere in (("same router", False), ("other router", True)):
        mine = [each for each in measured if each.elsewhere == elsewhere]
        ran = [each for each in mine if each.obeyed]
        steps = [each.step_freed - each.step_obeyed for each in ran]
        waited = [each for each in mine if not each.obeyed]
        figures[name] = {
            "cancels": {state: sum(each.state == state for each in mine) for state in STATES},
            "arrival_to_replica_ms": spread([each.obeyed - each.arrived for each in ran]),
            "arrival_to_free_ms": spread([each.freed - each.arrived for each in ran]),
            "steps_to_free": {str(n): steps.count(n) for n in sorted(set(steps))},
            "arrival_to_end_at_client_ms": spread([each.heard - each.arrived for each in ran]),
            "arrival_to_end_of_waiting_ms": spread([each.heard - each.arrived for each in waited]),
        }
    return figures


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return median, 99th percentile and largest, in milliseconds."""
    if len(seconds) < 2:
        return {}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"p50": round(1e3 * cuts[49], 2), "p99": round(1e3 * cuts[98], 2), "max": round(1e3 * max(seconds), 2)}
