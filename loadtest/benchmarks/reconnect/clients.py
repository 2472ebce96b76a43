"""Streams at two routers, one of which is killed.

The benchmark measures the other one, the streams, and a neighbour.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from loadtest.benchmarks.child import Child
from loadtest.benchmarks.reconnect.herd import POOL as HERD_POOL
from loadtest.benchmarks.reconnect.herd import start_herd
from loadtest.benchmarks.reconnect.neighbour import POOL, start_neighbour
from loadtest.benchmarks.reconnect.node import start_node

SLOTS = 2048
"""Slots per replica."""
STEP_S = 8.0
QUIET_S = 20.0
_LOOK_S = 0.05
_MOST_S = 120.0


@dataclass(frozen=True, slots=True)
class HerdPlan:
    """What to run."""

    streams: int
    """Half of them lose their router."""
    processes: int
    """Client processes."""
    quiet_s: float
    """Seconds of quiet before the death, and after the return."""
    nice: int
    """How far clients stand back for the cluster. On machines of their own they would take none of its time."""


def sections(streams: int) -> dict[str, Any]:
    """Return the settings of all processes."""
    slow = {"base_ms": STEP_S * 1e3, "per_token_us": 0, "per_kv_token_us": 0, "kv_tokens": 64 * streams + 4096}
    quick = {"base_ms": 5.0, "max_num_seqs": 64}
    return {
        # A step is far longer than an engine may usually be silent.
        "router": {"port": 0, "token_timeout_s": 600.0, "first_token_timeout_s": 600.0},
        "queue": {"max_waiting_per_tenant": 2 * streams + 100, "max_waiting": 2 * streams + 100},
        "pools": {
            HERD_POOL: {"engine": "sim", "sim": {**slow, "max_num_seqs": SLOTS, "max_num_batched_tokens": 4 * SLOTS}},
            POOL: {"engine": "sim", "sim": quick},
        },
    }


class HerdProcesses:
    """All streams of the herd, in processes of their own."""

    def __init__(self, parts: Sequence[Child], streams: int) -> None:
        self._parts = parts
        self._streams = streams
        self.ends: Counter[str] = Counter()
        """How streams have ended, as far as `wait` has seen."""

    @classmethod
    async def start(cls, targets: Sequence[str], plan: HerdPlan, tokens: int) -> HerdProcesses:
        """Start to open all streams."""
        shares = [plan.streams // plan.processes + (n < plan.streams % plan.processes) for n in range(plan.processes)]
        parts = [await start_herd(targets, share, tokens, plan.nice) for share in shares]
        return cls(parts, plan.streams)

    async def begun(self, progress: Callable[[int], None]) -> None:
        """Wait until each stream has its first event."""
        told = 0
        while told < self._streams:
            begun = sum([(await part.ask())["begun"] for part in self._parts])
            progress(begun - told)
            told = begun
            await asyncio.sleep(_LOOK_S)

    async def wait(self) -> None:
        """Wait until every stream has ended."""
        while self.ends.total() < self._streams:
            await asyncio.sleep(_LOOK_S)
            self.ends = sum([Counter((await part.ask())["ends"]) for part in self._parts], Counter())

    async def cpu_s(self) -> float:
        """Return the CPU seconds of all processes."""
        return float(sum([(await part.ask())["cpu_s"] for part in self._parts]))

    async def close(self) -> None:
        """End the processes."""
        for part in self._parts:
            await part.stop()


async def run(folder: Path, redis_url: str, plan: HerdPlan, progress: Callable[[int], None]) -> dict[str, Any]:
    """Run it once. Return the figures."""
    settings, streams = sections(plan.streams), plan.streams
    nodes: list[Child] = []

    async def started(role: str, count: int = 1) -> Child:
        nodes.append(await start_node(folder, redis_url, settings, role, count))
        return nodes[-1]

    herd: HerdProcesses | None = None
    neighbour: Child | None = None
    try:
        await started(POOL)
        count = -(-streams // SLOTS)
        await started(HERD_POOL, count)
        doomed, left = await started("router"), await started("router")
        await _linked((doomed, left), count + 1)
        targets = [f"127.0.0.1:{(await node.ask())['port']}" for node in (doomed, left)]
        neighbour = await start_neighbour(targets[1])
        # Long enough for opening at 200 a second, the phases, and some more.
        herd = await HerdProcesses.start(targets, plan, tokens=int((streams / 200 + 5 * QUIET_S) / STEP_S))
        await herd.begun(progress)
        return await _measure(herd, neighbour, nodes, plan.quiet_s)
    finally:
        if herd is not None:
            await herd.close()
        if neighbour is not None:
            await neighbour.stop()
        for node in reversed(nodes):
            await node.stop()


async def _linked(routers: Sequence[Child], replicas: int) -> None:
    for router in routers:
        while (await router.ask())["links"] < replicas:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(_LOOK_S)


async def _spent(left: Child, replicas: Sequence[Child], herd: HerdProcesses) -> dict[str, float]:
    """Return the CPU seconds of those who take part, and of the whole machine."""
    machine = psutil.cpu_times()
    return {
        "router": float((await left.ask())["cpu_s"]),
        "replicas": float(sum([(await node.ask())["cpu_s"] for node in replicas])),
        "clients": await herd.cpu_s(),
        "machine": sum(machine) - machine.idle - machine.iowait,
    }


async def _measure(herd: HerdProcesses, neighbour: Child, nodes: Sequence[Child], quiet_s: float) -> dict[str, Any]:
    *replicas, doomed, left = nodes
    await neighbour.ask()
    await asyncio.sleep(quiet_s)
    before, at_first = await neighbour.ask(), await left.ask()
    spent = await _spent(left, replicas, herd)
    broken = (await doomed.ask())["open_calls"]
    killed_at = time.monotonic()
    await doomed.kill()
    whole = at_first["open_calls"] + broken
    came: dict[str, dict[str, float]] = {"open_calls": {}, "attached": {}}
    turns: list[float] = []
    while time.monotonic() - killed_at < _MOST_S and "all" not in came["attached"]:
        found = await left.ask()
        turns += found["turns_s"]
        for what, moments in came.items():
            # Calls of its neighbours come and go. The herd is there when nearly all of it is.
            there = found[what] - at_first[what]
            for name, part in (("half", 0.5), ("99 %", 0.99), ("all", 1.0)):
                if there >= part * (broken - 2) and name not in moments:
                    moments[name] = round(time.monotonic() - killed_at, 2)
        await asyncio.sleep(_LOOK_S)
    took = time.monotonic() - killed_at
    during, spent_then = await neighbour.ask(), await _spent(left, replicas, herd)
    at_peak = await left.ask()
    await asyncio.sleep(quiet_s)
    after = await neighbour.ask()
    await herd.wait()
    at_last = await left.ask()
    return {
        "streams": herd.ends.total(),
        "broken": broken,
        "open_calls_after": whole,
        "ends": dict(herd.ends),
        "arrived_s": came["open_calls"],
        "back_s": came["attached"],
        "rss_mb": {"before": at_first["rss_mb"], "herd": at_peak["rss_mb"], "end": at_last["rss_mb"]},
        "lag_s": at_last["lag_s"],
        "cores": {name: round((spent_then[name] - spent[name]) / took, 2) for name in spent},
        "cpu_of_a_return_ms": round(1e3 * (spent_then["router"] - spent["router"]) / max(1, broken), 3),
        "turn_ms": {part: round(1e3 * float(np.percentile(turns, part)), 2) for part in (50, 99)},
        "neighbour": {"before": _spread(before), "herd": _spread(during), "after": _spread(after)},
    }


def _spread(taken: Mapping[str, Any]) -> dict[str, float]:
    figures: dict[str, float] = {"streams": len(taken["ttft_s"]), "failed": taken["failed"]}
    if not taken["ttft_s"]:
        return figures
    for name in ("ttft", "total"):
        for part in (50, 99):
            figures[f"{name}_p{part}_ms"] = round(1e3 * float(np.percentile(taken[f"{name}_s"], part)), 1)
    return figures
