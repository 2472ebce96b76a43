"""One run: a router, its replicas, the crowds, and the phases in which they are measured."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.benchmarks.connections.certificates import CertificateFiles, KeyKind
from loadtest.benchmarks.connections.crowd import CrowdProcess
from loadtest.benchmarks.connections.wire import APIS, Api
from loadtest.benchmarks.reconnect.node import Node

CROWD, WATCHED = "crowd", "watched"
"""Pools of the slow streams and of those whose gaps are measured."""
SLOTS = 2048
"""Slots per replica."""
STEP_S = 8.0
"""Time between two tokens of a slow stream. An engine that makes no step for ten seconds counts as hung."""
GAP_MS = 25.0
"""Time between two tokens of a watched stream."""
WATCHED_STREAMS = 32
"""Watched streams of each API."""
PART = 250
"""Connections that a process opens in one go."""
AT_ONCE = 32
"""Connections that a process opens at the same time."""
SPARE_FILES = 300
"""Files of a router beside its connections: replicas, Redis, libraries."""
SLOW_TOKENS, WATCHED_TOKENS = 400, 30_000
_LOOK_S = 0.2
_MOST_S = 120.0
QUIET = "quiet"


@dataclass(frozen=True, slots=True)
class ConnectionPlan:
    """What to run."""

    connections: int
    """Half of them over HTTP, half over gRPC."""
    processes: int
    """Client processes of the slow streams."""
    rounds: int
    """Rounds of a quiet time and a storm on each port."""
    seconds: float
    """Duration of each."""
    at_once: int
    """Handshakes of a storm at the same time."""
    key: KeyKind
    nice: int
    """How far clients stand back for the cluster. On a machine of their own they would take none of its time."""


def sections(plan: ConnectionPlan, files: CertificateFiles) -> dict[str, Any]:
    """Return the settings of all processes."""
    most = plan.connections + 2 * WATCHED_STREAMS + 100
    slow = {"base_ms": STEP_S * 1e3, "per_token_us": 0, "per_kv_token_us": 0, "kv_tokens": 1024 * SLOTS}
    quick = {"base_ms": GAP_MS, "per_token_us": 0, "per_kv_token_us": 0, "kv_tokens": 4_000_000}
    return {
        "router": {
            "port": 0,
            "http": {"port": 0},
            "tls": {"certificate_file": str(files.certificate), "private_key_file": str(files.key)},
            # A step is far longer than an engine may usually be silent.
            "token_timeout_s": 600.0,
            "first_token_timeout_s": 600.0,
            # What is measured are gaps between tokens, not between messages.
            "merging": {"at_most_s": 0.0},
        },
        "queue": {"max_waiting_per_tenant": most, "max_waiting": most},
        "pools": {
            CROWD: {"engine": "sim", "sim": {**slow, "max_num_seqs": SLOTS, "max_num_batched_tokens": 4 * SLOTS}},
            WATCHED: {"engine": "sim", "sim": {**quick, "max_num_seqs": 4 * WATCHED_STREAMS}},
        },
    }


class ConnectionRun:
    """A router with its clients."""

    def __init__(self, plan: ConnectionPlan, folder: Path, redis_url: str, told: Callable[[str, int], None]) -> None:
        """`told` hears the phase, and by how much it is further."""
        self._plan = plan
        self._folder = folder
        self._redis_url = redis_url
        self._told = told
        self._nodes: list[Node] = []
        self._crowds: list[CrowdProcess] = []
        self._router: Node
        self._watch: CrowdProcess
        self._storm: CrowdProcess

    async def run(self) -> dict[str, Any]:
        """Run everything, and return the figures."""
        try:
            await self._start()
            return await self._measure()
        finally:
            for crowd in self._crowds:
                await crowd.stop()
            for node in reversed(self._nodes):
                await node.stop()

    async def _start(self) -> None:
        settings = sections(self._plan, CertificateFiles.write(self._folder, self._plan.key))
        replicas = -(-self._plan.connections // SLOTS)
        for role, count in ((WATCHED, 1), (CROWD, replicas), ("router", 1)):
            self._nodes.append(await Node.start(self._folder, self._redis_url, settings, role, count))
        self._router = self._nodes[-1]
        while (figures := await self._router.ask("figures"))["links"] < replicas + 1:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(_LOOK_S)
        ports: dict[Api, int] = {"http": figures["http_port"], "grpc": figures["port"]}
        self._watch = await CrowdProcess.start(0, ports, watched=True)
        self._storm = await CrowdProcess.start(1, ports, nice=self._plan.nice)
        slow = [await CrowdProcess.start(2 + n, ports, nice=self._plan.nice) for n in range(self._plan.processes)]
        self._crowds = [self._watch, self._storm, *slow]

    async def _measure(self) -> dict[str, Any]:
        slow = self._crowds[2:]
        for api in APIS:
            await self._watch.tell(
                "open", api=api, count=WATCHED_STREAMS, at_once=8, model=WATCHED, tokens=WATCHED_TOKENS
            )
        await _begun([self._watch], 2 * WATCHED_STREAMS)
        # The first requests bring tokenizers and code.
        for crowd in slow:
            await crowd.tell("open", api="http", count=1, at_once=1, model=CROWD, tokens=SLOW_TOKENS)
        idle = await self._router.ask("figures")
        opened = [await self._open(api) for api in APIS]
        await _begun(slow, self._plan.connections + len(slow))
        last = await self._router.ask("figures")
        storms = await self._storms()
        counts = [await crowd.tell("leave") for crowd in slow]
        return {
            "connections": self._plan.connections,
            "key": self._plan.key,
            "open": dict(zip(APIS, opened, strict=True)),
            "memory_mb": {"idle": idle["rss_mb"], "all": last["rss_mb"], "after": await self._memory_after()},
            **storms,
            "client_mb": round(sum(count["rss_mb"] for count in counts), 1),
            "ends": dict(sum((Counter(count["ends"]) for count in counts), Counter())),
        }

    async def _memory_after(self) -> float:
        for _ in range(int(_MOST_S / _LOOK_S)):
            figures = await self._router.ask("figures")
            if figures["open_calls"] <= 2 * WATCHED_STREAMS:
                break
            await asyncio.sleep(_LOOK_S)
        return float(figures["rss_mb"])

    # --- opening ------------------------------------------------------------------------------------------------------

    async def _open(self, api: Api) -> dict[str, float]:
        slow, count = self._crowds[2:], self._plan.connections // len(APIS)
        before, began = await self._router.ask("figures"), asyncio.get_running_loop().time()
        shares = [count // len(slow) + (number < count % len(slow)) for number in range(len(slow))]

        async def fill(crowd: CrowdProcess, share: int) -> None:
            for first in range(0, share, PART):
                part = min(PART, share - first)
                order = {"api": api, "count": part, "at_once": AT_ONCE, "model": CROWD, "tokens": SLOW_TOKENS}
                await crowd.tell("open", **order)
                self._told(f"{api} connections", part)

        await asyncio.gather(*(fill(crowd, share) for crowd, share in zip(slow, shares, strict=True)))
        wanted = before["open_calls"] + count
        while (after := await self._router.ask("figures"))["open_calls"] < wanted:  # noqa: ASYNC110 - as above
            await asyncio.sleep(_LOOK_S)
        seconds = asyncio.get_running_loop().time() - began
        return {
            "per_s": round(count / seconds, 1),
            "cpu_ms": round(1e3 * (after["cpu_s"] - before["cpu_s"]) / count, 3),
            "kb": round(1e3 * (after["rss_mb"] - before["rss_mb"]) / count, 1),
        }

    # --- storms -------------------------------------------------------------------------------------------------------

    async def _storms(self) -> dict[str, Any]:
        phases: tuple[Api | None, ...] = (None, *APIS)
        rows: dict[str, list[dict[str, Any]]] = {api or QUIET: [] for api in phases}
        for number in range(self._plan.rounds):
            # Later rounds begin elsewhere, so that what changes on the machine hits all of them.
            for api in (*phases[number % 3 :], *phases[: number % 3]):
                rows[api or QUIET].append(await self._phase(api))
        quiet = rows[QUIET]
        spare = float(np.median([row["cpu_share"] for row in quiet]))
        found: dict[str, Any] = {
            "itl_ms": {name: _itl(taken) for name, taken in rows.items()},
            "turn_ms": {
                name: {f"p{part}": _part([turn for row in taken for turn in row["turns_s"]], part) for part in (50, 99)}
                for name, taken in rows.items()
            },
            "storms": {},
        }
        for api in APIS:
            done = sum(row["handshakes"] for row in rows[api])
            taken = sum(row["seconds"] for row in rows[api])
            cpu = sum((row["cpu_share"] - spare) * row["seconds"] for row in rows[api])
            waits = [wait for row in rows[api] for wait in row["times_s"]]
            found["storms"][api] = {
                "per_s": round(done / taken, 1),
                "cpu_ms": round(1e3 * cpu / max(1, done), 3),
                "p50_ms": _part(waits, 50),
                "p99_ms": _part(waits, 99),
                "failed": dict(sum((Counter(row["failures"]) for row in rows[api]), Counter())),
                "itl_p99_of_quiet": {
                    own: [
                        round(_part(storm["gaps_s"][own], 99) / _part(calm["gaps_s"][own], 99), 3)
                        for storm, calm in zip(rows[api], quiet, strict=True)
                    ]
                    for own in APIS
                },
            }
        return {"cpu_share": {name: [row["cpu_share"] for row in taken] for name, taken in rows.items()}, **found}

    async def _phase(self, api: Api | None) -> dict[str, Any]:
        seconds = self._plan.seconds
        await self._watch.tell("take")
        before = await self._router.ask("figures")
        if api is None:
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(seconds)
            storm: dict[str, Any] = {"times_s": [], "failures": {}}
            storm["seconds"] = asyncio.get_running_loop().time() - began
        else:
            storm = await self._storm.tell("storm", api=api, seconds=seconds, at_once=self._plan.at_once)
        after, gaps = await self._router.ask("figures"), await self._watch.tell("take")
        self._told("storms", 1)
        share = (after["cpu_s"] - before["cpu_s"]) / storm["seconds"]
        return {
            **storm,
            "turns_s": after["turns_s"],
            "cpu_share": round(share, 4),
            "gaps_s": gaps,
            "handshakes": len(storm["times_s"]),
        }


async def _begun(crowds: Sequence[CrowdProcess], streams: int) -> None:
    while sum([(await crowd.tell("look"))["begun"] for crowd in crowds]) < streams:
        counts = [await crowd.tell("look") for crowd in crowds]
        if ends := sum((Counter(count["ends"]) for count in counts), Counter[str]()):
            raise RuntimeError(f"streams ended before their first message: {dict(ends)}")
        await asyncio.sleep(_LOOK_S)


def _itl(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    gaps = {api: [gap for row in rows for gap in row["gaps_s"][api]] for api in APIS}
    return {api: {f"p{part}": _part(taken, part) for part in (50, 99)} for api, taken in gaps.items()}


def _part(seconds: Sequence[float], part: int) -> float:
    return round(1e3 * float(np.percentile(seconds, part)), 2) if seconds else 0.0
