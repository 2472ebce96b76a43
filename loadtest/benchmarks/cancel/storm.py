"""A storm of generations that end in every state and every way. Afterwards the benchmark counts the remains."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import redis.asyncio

from cluster.jobs.pools import JOB_POOLS_KEY
from loadtest.benchmarks.cancel.host import Host, hosted
from loadtest.benchmarks.cancel.requests import MAX_TOKENS, Reference, fresh_prompt, generation, streamed, stub
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types

CLIENTS = 400
MARKS = (0.2, 0.6, 1.0)
"""Parts of the storm after which memory is measured, at rest."""
SECTIONS = {
    # Seconds that a request with a key outlives its client.
    "queue": {"attach_grace_s": 1.0},
    "sim": {"base_ms": 30.0, "per_token_us": 5.0, "max_num_seqs": 32, "max_num_batched_tokens": 4096},
    # Full after the first part of the storm, so that it does not look like a leak.
    "router": {"affinity": {"index_blocks": 10_000}},
}
WAYS = {
    "cancel": 25,
    "cancel elsewhere": 20,
    "cancel by key": 5,
    "gone": 25,
    "unary gone": 5,
    "deadline": 15,
    "none": 5,
}
"""Ways in which a generation ends, by weight. "none" ends by itself."""
WHENS = {"at once": 25, "first event": 25, "started": 20, "long prefill": 5, "decode": 20}
"""States in which its end is sent, by weight. "long prefill" is a long prompt without output yet."""
SETTLE_S = 30.0
_LOOK_S = 0.05
_LOOKS = 20
"""Number of censuses. A surplus in all of them counts as left behind."""
LASTING = {
    "pool",
    "load",
    "free",
    "registry",
    "replicas",
    "routers",
    "links",
    "ledger",
    "ledger_days",
    "reports",
    "control",
    "meters",
    "records",
    "records_recent",
    "records_missed",
    "records_tenants",
    "records_bytes",
    "watchers",
    JOB_POOLS_KEY,
}
"""Redis keys that are not of requests that run, or of quotas. Those of a pool are given by their names in it."""
OF_RESULTS = {"results", "keys", "key_due"}
"""Redis keys that keep results for a retry with the same idempotency key."""
WINDOWED = {
    "cluster.control.step_model.StepSample",
    # A router's newest look at the line, with its parts.
    "cluster.queue.line.Line",
    "cluster.queue.line.PlaceInLine",
    "cluster.queue.line.SlotHolder",
    "cluster.queue.line.TenantLine",
    "router.records.pace._Seen",
    "router.generation.wait.EarlierRefusals",
}
"""Objects kept for a span of time. Their number does not depend on the number of requests."""


@dataclass(slots=True)
class StormTally:
    """Observations of the clients."""

    done: int = 0
    states: Counter[str] = field(default_factory=Counter)
    """States of generations when their end was sent, as their client knew them."""
    ends: Counter[str] = field(default_factory=Counter)
    """Counts by way and outcome."""
    errors: Counter[str] = field(default_factory=Counter)
    """Outcomes that no client should see."""
    mixed: int = 0
    """Number of events, tokens and replies that belong to another request."""
    late: int = 0
    """Number of cancels whose request had ended."""
    kept: int = 0
    """Number of generations with a key that may have ended by themselves, so that their results are kept."""
    seen: set[str] = field(default_factory=set)


class _Stream:
    """Reader of one stream. It checks that every event belongs to this stream."""

    def __init__(self, call: Any, tally: StormTally, fits: Callable[[api.Delta], bool]) -> None:
        self._call = call
        self._tally = tally
        self._fits = fits
        self.request_id = ""
        self.state = "unheard"
        self.finished: api.Finished | None = None

    async def read(self) -> bool:
        """Read one event. Return False at the end."""
        event = await self._call.read()
        if event is grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the stubs
            return False
        kind = event.WhichOneof("event")
        if kind == "delta":
            self.state = "decode"
            self._tally.mixed += not self._fits(event.delta)
            return True
        if kind in ("queued", "started"):
            self.state = "queued" if kind == "queued" else "prefill"
        elif kind == "finished":
            self.finished = event.finished
        self._check(getattr(event, kind).request_id)
        return True

    def _check(self, request_id: str) -> None:
        if self.request_id:
            self._tally.mixed += request_id != self.request_id
            return
        self.request_id = request_id
        self._tally.mixed += request_id in self._tally.seen
        self._tally.seen.add(request_id)


class Storm:
    """The crowd of clients."""

    def __init__(self, inferences: Sequence[Any], reference: Reference, seed: int = 1) -> None:
        self.tally = StormTally()
        self._inferences = inferences
        self._reference = reference
        self._draw = random.Random(seed)
        self._salt = f"{time.time_ns():x}"

    async def run(self, count: int, progress: Callable[[int], None]) -> None:
        """Run this many generations, CLIENTS at a time."""
        left = iter(range(count))

        async def client() -> None:
            for _ in left:
                await self._one()
                self.tally.done += 1
                progress(1)

        await asyncio.gather(*(client() for _ in range(min(CLIENTS, count))))

    async def _one(self) -> None:
        [way] = self._draw.choices(list(WAYS), list(WAYS.values()))
        [when] = self._draw.choices(list(WHENS), list(WHENS.values()))
        home = self._draw.randrange(len(self._inferences))
        number = self._draw.randrange(len(self._reference.prompts))
        prompt, fits = self._reference.prompts[number], lambda delta: self._reference.fits(number, delta)
        if when == "long prefill":
            prompt, fits = fresh_prompt(self._draw), lambda _delta: True
        if way == "unary gone":
            await self._unary(home, prompt)
            return
        key = f"{self._salt}-{self.tally.done}-{self._draw.random()}" if way == "cancel by key" else ""
        timeout = self._draw.uniform(0.02, 0.5) if way == "deadline" else None
        tokens = 3 if way == "none" else MAX_TOKENS
        call = self._inferences[home].StreamGenerate(streamed(prompt, key, tokens), timeout=timeout)
        stream = _Stream(call, self.tally, fits)
        try:
            if way not in ("deadline", "none"):
                await self._reach(stream, when)
                self.tally.states[stream.state] += 1
                await self._end(stream, call, way, home, key)
            while await stream.read():
                pass
            code = await call.code()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            code = grpc.StatusCode.CANCELLED
        except grpc.aio.AioRpcError as error:
            code = error.code()
        if way == "deadline":
            self.tally.states[stream.state] += 1
        self._judge(way, code, stream.finished)

    async def _reach(self, stream: _Stream, when: str) -> None:
        if when == "at once":
            await asyncio.sleep(self._draw.uniform(0, 0.01))
            return
        wanted = {"first event": ("queued", "prefill", "decode"), "decode": ("decode",)}
        states = wanted.get(when, ("prefill", "decode"))
        while stream.state not in states and await stream.read():
            pass

    async def _end(self, stream: _Stream, call: Any, way: str, home: int, key: str) -> None:
        if way == "gone" or not (stream.request_id or key):
            # A request without an event yet has no id to cancel it by.
            call.cancel()
            return
        elsewhere = way != "cancel"
        target = {"idempotency_key": key} if key else {"request_id": stream.request_id}
        try:
            reply = await self._inferences[(home + elsewhere) % len(self._inferences)].Cancel(
                api.CancelRequest(**target)
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                self.tally.errors[f"Cancel: {error.code().name}"] += 1
            self.tally.late += 1
            self.tally.kept += bool(key)
            # The request is not yet in line, or over.
            call.cancel()
            return
        self.tally.mixed += bool(stream.request_id) and reply.request_id != stream.request_id

    async def _unary(self, home: int, prompt: types.Prompt) -> None:
        call = self._inferences[home].Generate(generation(prompt))
        await asyncio.sleep(self._draw.uniform(0, 0.1))
        self.tally.states["unheard"] += 1
        call.cancel()
        self._judge("unary gone", await call.code(), None)

    def _judge(self, way: str, code: grpc.StatusCode, finished: api.Finished | None) -> None:
        reason = ""
        if finished is not None:
            reason = types.FinishReason.Name(finished.choices[0].finish_reason).removeprefix("FINISH_REASON_")
        outcome = f"{way}: {reason or code.name}"
        self.tally.ends[outcome] += 1
        self.tally.kept += way == "cancel by key" and reason == "LENGTH"
        late = {"deadline": {"DEADLINE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "LENGTH"}, "none": {"LENGTH"}}
        # Cancelled calls end by themselves too, if the cancel comes late.
        if (reason or code.name) not in late.get(way, {"CANCELLED", "LENGTH", "OK"}):
            self.tally.errors[outcome] += 1


async def run(folder: Path, redis_url: str, cancels: int, progress: Callable[[int], None]) -> dict[str, Any]:
    """Run the storm on a testbed of its own. Return the figures."""
    client = redis.asyncio.Redis.from_url(redis_url)
    try:
        async with hosted(folder, redis_url, SECTIONS) as host:
            channels = [grpc.aio.insecure_channel(target) for target in host.targets]
            try:
                return await _measure(host, client, [stub(channel) for channel in channels], cancels, progress)
            finally:
                for channel in channels:
                    await channel.close(None)
    finally:
        await client.aclose()


async def _measure(
    host: Host, client: Any, inferences: Sequence[Any], cancels: int, progress: Callable[[int], None]
) -> dict[str, Any]:
    storm = Storm(inferences, await Reference.make(inferences[0]))
    # Both routers, replicas and all code paths have worked before the count begins.
    warm_up = max(200, cancels // 100)
    await storm.run(warm_up, lambda _: None)
    await _settle(host)
    before, keys_before = await host.ask("census"), await key_sizes(client)
    storm.tally = StormTally()
    began = time.monotonic()
    rss: dict[int, float] = {0: before["rss_mb"]}
    busy_s = 0.0
    for mark in MARKS:
        segment = time.monotonic()
        await storm.run(int(cancels * mark) - storm.tally.done, progress)
        busy_s += time.monotonic() - segment
        settled_s = await _settle(host)
        rss[storm.tally.done] = (await host.ask("census"))["rss_mb"]
    after, keys_after = await _at_rest(host, before), await key_sizes(client)
    tally = storm.tally
    return {
        "generations": tally.done,
        "per_s": round(tally.done / busy_s, 1),
        "total_s": round(time.monotonic() - began, 1),
        "settled_s": round(settled_s, 2),
        "states": dict(tally.states),
        "ends": dict(sorted(tally.ends.items())),
        "late_cancels": tally.late,
        "errors": dict(tally.errors),
        "mixed_replies": tally.mixed,
        "left": {name: n for name, n in after["held"].items() if n},
        "left_objects": dict(sorted(_surplus(after, before).items())),
        "left_tasks": after["tasks"] - before["tasks"],
        "kept_results": tally.kept,
        "left_keys": {
            name: n
            for name, n in keys_after.items()
            if name not in LASTING and not (name in OF_RESULTS and n <= tally.kept)
        },
        "new_keys": sorted(set(keys_after) - set(keys_before) - LASTING - OF_RESULTS),
        "rss_mb": rss,
    }


async def _settle(host: Host) -> float:
    """Wait until nothing is held. Return the seconds that it took.

    After the bound it returns without an error, because the census shows the remains.
    """
    began = time.monotonic()
    for _ in range(round(SETTLE_S / _LOOK_S)):
        if not any((await host.ask("held")).values()):
            break
        await asyncio.sleep(_LOOK_S)
    took = time.monotonic() - began
    # One heartbeat, so that Redis is up to date.
    await asyncio.sleep(1.5)
    return took


async def _at_rest(host: Host, before: dict[str, Any]) -> dict[str, Any]:
    """Take the census. Repeat it while it shows more than before, because a heartbeat may have been under way.

    A leak shows in every census.
    """
    for _ in range(_LOOKS):
        after: dict[str, Any] = await host.ask("census")
        if not _surplus(after, before) and after["tasks"] <= before["tasks"]:
            break
        await asyncio.sleep(_LOOK_S)
    return after


def _surplus(after: dict[str, Any], before: dict[str, Any]) -> dict[str, int]:
    """Count the new objects of each kind."""
    grown = {kind: n - before["objects"].get(kind, 0) for kind, n in after["objects"].items() if kind not in WINDOWED}
    return {kind: n for kind, n in grown.items() if n > 0}


async def key_sizes(client: Any) -> dict[str, int]:
    """Return the size of each key of Redis, by its name in the pool."""
    sizes = {}
    async for key in client.scan_iter():
        kind = (await client.type(key)).decode()
        count = {"hash": client.hlen, "zset": client.zcard}.get(kind)
        sizes[key.decode().split("}:")[-1]] = int(await count(key)) if count is not None else 1
    return sizes
