"""One run: a router, its replicas, the crowds, and the phases in which they are measured."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from loadtest.benchmarks.child import Child
from loadtest.benchmarks.connections.certificates import CertificateFiles, KeyKind
from loadtest.benchmarks.connections.crowd import CrowdProcess
from loadtest.benchmarks.connections.wire import APIS, Api
from loadtest.benchmarks.reconnect.node import start_node

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
"""Streams that a process opens in one go."""
AT_ONCE = 32
"""Connections that a process opens at the same time; fewer where each has several streams."""
SPARE_FILES = 300
"""Files of a router beside its connections: replicas, Redis, libraries."""
SLOW_TOKENS, WATCHED_TOKENS = 400, 30_000
_LOOK_S = 0.2
_MOST_S = 120.0
QUIET = "quiet"


@dataclass(frozen=True, slots=True)
class StormPhase:
    """A quiet time, or a storm."""

    api: Api | None = None
    """API of the port that is stormed; None in a quiet time."""
    aside: bool = False
    """Whether it is that of another router, without streams: what the storm takes of the machine, and nothing else."""

    @property
    def name(self) -> str:
        """Name in tables and JSON."""
        if self.api is None:
            return QUIET
        return f"{self.api}, other router" if self.aside else self.api


NO_STORMS: Mapping[str, Any] = {"itl_ms": {}, "turn_ms": {}, "storms": {}}
PHASES = (StormPhase(), *(StormPhase(api, aside) for api in APIS for aside in (True, False)))


@dataclass(frozen=True, slots=True)
class ConnectionPlan:
    """What to run."""

    connections: int
    """The same number of each API."""
    apis: Sequence[Api]
    """APIs of the slow streams."""
    streams_each: int
    """Streams that share a connection of gRPC; one of HTTP has one."""
    tls: bool
    processes: int
    """Client processes of the slow streams."""
    rounds: int
    """Rounds of a quiet time, and of a storm on each port of this router and of another one."""
    seconds: float
    """Duration of each."""
    at_once: int
    """Handshakes of a storm at the same time."""
    key: KeyKind
    nice: int
    """How far clients stand back for the cluster. On a machine of their own they would take none of its time."""

    def connections_of(self, api: Api) -> int:
        """Return how many connections of slow streams an API has."""
        return self.connections // len(self.apis) if api in self.apis else 0

    def streams_of(self, api: Api) -> int:
        """Return how many slow streams an API has."""
        return self.connections_of(api) * self.each(api)

    def each(self, api: Api) -> int:
        """Return how many streams a connection has."""
        return self.streams_each if api == "grpc" else 1

    @property
    def streams(self) -> int:
        """All slow streams."""
        return sum(map(self.streams_of, self.apis))


def sections(plan: ConnectionPlan, files: CertificateFiles) -> dict[str, Any]:
    """Return the settings of all processes."""
    most = plan.streams + 2 * WATCHED_STREAMS + 100
    pair = {"certificate_file": str(files.certificate), "private_key_file": str(files.key)}
    tls = {"tls": pair} if plan.tls else {}
    slow = {"base_ms": STEP_S * 1e3, "per_token_us": 0, "per_kv_token_us": 0, "kv_tokens": 1024 * SLOTS}
    quick = {"base_ms": GAP_MS, "per_token_us": 0, "per_kv_token_us": 0, "kv_tokens": 4_000_000}
    return {
        "router": {
            "port": 0,
            "http": {"port": 0},
            **tls,
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
        self._nodes: list[Child] = []
        self._crowds: list[CrowdProcess] = []
        self._slow: list[CrowdProcess] = []
        self._opening: dict[str, dict[str, float]] = {}
        """Cores that each party used while connections were opened."""
        self._router: Child
        self._aside: Child
        self._watch: CrowdProcess
        self._storms: dict[bool, CrowdProcess] = {}
        """Who storms this router (False), and who the other one (True)."""

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
        plan = self._plan
        replicas = -(-plan.streams // SLOTS)
        for role, count in ((WATCHED, 1), (CROWD, replicas), ("router", 1), ("router", 1)):
            self._nodes.append(await start_node(self._folder, self._redis_url, settings, role, count))
        self._router, self._aside = self._nodes[-2:]
        ports = await _ports(self._router, replicas + 1)
        self._watch = await CrowdProcess.join(0, ports, tls=plan.tls, watched=True)
        for aside, number, where in ((False, 1, ports), (True, 2, await _ports(self._aside, replicas + 1))):
            self._storms[aside] = await CrowdProcess.join(number, where, tls=plan.tls, nice=plan.nice)
        self._slow = [
            await CrowdProcess.join(3 + n, ports, tls=plan.tls, nice=plan.nice) for n in range(plan.processes)
        ]
        self._crowds = [self._watch, *self._storms.values(), *self._slow]

    async def _measure(self) -> dict[str, Any]:
        slow = self._slow
        for api in APIS:
            await self._watch.tell(
                "open", api=api, shares=[1] * WATCHED_STREAMS, at_once=8, model=WATCHED, tokens=WATCHED_TOKENS
            )
        await _begun([self._watch], 2 * WATCHED_STREAMS)
        # The first requests bring tokenizers and code.
        for crowd in slow:
            await crowd.tell("open", api="http", shares=[1], at_once=1, model=CROWD, tokens=SLOW_TOKENS)
        idle = await self._router.ask()
        opened = {api: await self._open(api) for api in self._plan.apis}
        await _begun(slow, self._plan.streams + len(slow))
        last = await self._router.ask()
        storms = await self._stormed() if self._plan.rounds else {"cpu_share": self._opening, **NO_STORMS}
        counts = [await crowd.tell("leave") for crowd in slow]
        return {
            "connections": self._plan.connections,
            "streams": self._plan.streams,
            "key": self._plan.key if self._plan.tls else "no TLS",
            "open": opened,
            "memory_mb": {"idle": idle["rss_mb"], "all": last["rss_mb"], "after": await self._memory_after()},
            **storms,
            "client_mb": round(sum(count["rss_mb"] for count in counts), 1),
            "ends": dict(sum((Counter(count["ends"]) for count in counts), Counter())),
        }

    async def _memory_after(self) -> float:
        for _ in range(int(_MOST_S / _LOOK_S)):
            figures = await self._router.ask()
            if figures["open_calls"] <= 2 * WATCHED_STREAMS:
                break
            await asyncio.sleep(_LOOK_S)
        return float(figures["rss_mb"])

    # --- opening ------------------------------------------------------------------------------------------------------

    async def _open(self, api: Api) -> dict[str, float]:
        slow, plan, each = self._slow, self._plan, self._plan.each(api)
        spent, began = await self._spent(), asyncio.get_running_loop().time()
        before = await self._router.ask()
        count, streams = plan.connections_of(api), plan.streams_of(api)
        shares = [count // len(slow) + (number < count % len(slow)) for number in range(len(slow))]
        most, at_once = max(1, PART // each), max(1, AT_ONCE // each)

        async def fill(crowd: CrowdProcess, share: int) -> None:
            for first in range(0, share, most):
                part = [each] * min(most, share - first)
                order = {"api": api, "shares": part, "at_once": at_once, "model": CROWD, "tokens": SLOW_TOKENS}
                _check_open(await crowd.tell("open", **order))
                self._told(f"{api} connections", len(part))

        await asyncio.gather(*(fill(crowd, share) for crowd, share in zip(slow, shares, strict=True)))
        wanted = before["open_calls"] + streams
        while (after := await self._router.ask())["open_calls"] < wanted:
            for crowd in slow:
                _check_open(await crowd.tell("look"))
            await asyncio.sleep(_LOOK_S)
        seconds = asyncio.get_running_loop().time() - began
        self._opening[f"opening {api}"] = _shares(spent, await self._spent(), seconds)
        return {
            "connections": count,
            "streams": streams,
            "per_s": round(count / seconds, 1),
            "cpu_ms": round(1e3 * (after["cpu_s"] - before["cpu_s"]) / streams, 3),
            "kb": round(1e3 * (after["rss_mb"] - before["rss_mb"]) / streams, 1),
        }

    # --- storms -------------------------------------------------------------------------------------------------------

    async def _stormed(self) -> dict[str, Any]:
        rows: dict[str, list[dict[str, Any]]] = {phase.name: [] for phase in PHASES}
        for number in range(self._plan.rounds):
            # Later rounds begin elsewhere, so that what changes on the machine hits all of them.
            first = number % len(PHASES)
            for phase in (*PHASES[first:], *PHASES[:first]):
                rows[phase.name].append(await self._phase(phase))
        found: dict[str, Any] = {
            "itl_ms": {name: _itl(taken) for name, taken in rows.items()},
            "turn_ms": {
                name: {f"p{part}": _part([turn for row in taken for turn in row["turns_s"]], part) for part in (50, 99)}
                for name, taken in rows.items()
            },
            "storms": {},
        }
        for phase in PHASES[1:]:
            taken = rows[phase.name]
            found["storms"][phase.name] = self._storm_row(phase, taken, rows[QUIET])
            if not phase.aside:
                beside = rows[StormPhase(phase.api, aside=True).name]
                found["storms"][phase.name]["itl_p99_of_other_router"] = _ratios(taken, beside)
        return {"cpu_share": self._opening | {name: _mean_shares(taken) for name, taken in rows.items()}, **found}

    def _storm_row(
        self, phase: StormPhase, taken: Sequence[dict[str, Any]], quiet: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        whose = "other router" if phase.aside else "router"
        done, seconds = sum(row["handshakes"] for row in taken), sum(row["seconds"] for row in taken)
        spare = float(np.median([row["cpu_share"][whose] for row in quiet]))
        cpu = sum((row["cpu_share"][whose] - spare) * row["seconds"] for row in taken)
        waits = [wait for row in taken for wait in row["times_s"]]
        return {
            "per_s": round(done / seconds, 1),
            "cpu_ms": round(1e3 * cpu / max(1, done), 3),
            "p50_ms": _part(waits, 50),
            "p99_ms": _part(waits, 99),
            "failed": dict(sum((Counter(row["failures"]) for row in taken), Counter())),
            "itl_p99_of_quiet": _ratios(taken, quiet),
        }

    async def _phase(self, phase: StormPhase) -> dict[str, Any]:
        seconds = self._plan.seconds
        await self._watch.tell("take")
        await self._router.ask()
        before, began = await self._spent(), asyncio.get_running_loop().time()
        if phase.api is None:
            await asyncio.sleep(seconds)
            storm: dict[str, Any] = {"times_s": [], "failures": {}}
            storm["seconds"] = asyncio.get_running_loop().time() - began
        else:
            storm = await self._storms[phase.aside].tell(
                "storm", api=phase.api, seconds=seconds, at_once=self._plan.at_once
            )
        gaps, turns = await self._watch.tell("take"), (await self._router.ask())["turns_s"]
        after, took = await self._spent(), asyncio.get_running_loop().time() - began
        self._told("storms", 1)
        return {
            **storm,
            "turns_s": turns,
            "cpu_share": _shares(before, after, took),
            "gaps_s": gaps,
            "handshakes": len(storm["times_s"]),
        }

    async def _spent(self) -> dict[str, float]:
        """Return the CPU seconds of everything that takes part, and of the whole machine."""
        router, aside = [(await node.ask())["cpu_s"] for node in (self._router, self._aside)]
        storm = [(await crowd.tell("look"))["cpu_s"] for crowd in self._storms.values()]
        crowds = [(await crowd.tell("look"))["cpu_s"] for crowd in (self._watch, *self._slow)]
        replicas = [(await node.ask())["cpu_s"] for node in self._nodes[:-2]]
        machine = psutil.cpu_times()
        return {
            "router": router,
            "other router": aside,
            "replicas": sum(replicas),
            "clients": sum(crowds),
            "storm": sum(storm),
            "machine": sum(machine) - machine.idle - machine.iowait,
        }


async def _ports(router: Child, links: int) -> dict[Api, int]:
    while (figures := await router.ask())["links"] < links:  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(_LOOK_S)
    return {"http": figures["http_port"], "grpc": figures["port"]}


async def _begun(crowds: Sequence[CrowdProcess], streams: int) -> None:
    while sum([_check_open(await crowd.tell("look")) for crowd in crowds]) < streams:  # noqa: ASYNC110 - as above
        await asyncio.sleep(_LOOK_S)


def _check_open(counts: Mapping[str, Any]) -> int:
    """Return how many streams of a crowd have begun.

    Raises:
        RuntimeError: one has ended, or was not opened.
    """
    if counts["ends"]:
        raise RuntimeError(f"streams ended before they were measured: {counts['ends']}")
    return int(counts["begun"])


def _ratios(rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    return {
        api: [
            round(_part(row["gaps_s"][api], 99) / _part(other["gaps_s"][api], 99), 3)
            for row, other in zip(rows, others, strict=True)
        ]
        for api in APIS
    }


def _shares(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    return {whose: round((after[whose] - before[whose]) / seconds, 4) for whose in before}


def _mean_shares(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    shares = [row["cpu_share"] for row in rows]
    return {whose: round(float(np.mean([share[whose] for share in shares])), 3) for whose in shares[0]}


def _itl(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    gaps = {api: [gap for row in rows for gap in row["gaps_s"][api]] for api in APIS}
    return {api: {f"p{part}": _part(taken, part) for part in (50, 99)} for api, taken in gaps.items()}


def _part(seconds: Sequence[float], part: int) -> float:
    return round(1e3 * float(np.percentile(seconds, part)), 2) if seconds else 0.0
