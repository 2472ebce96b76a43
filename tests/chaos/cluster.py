"""A cluster of real processes with a proxy on every connection: client > router > replica, and both > Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from redis.exceptions import RedisError

from cluster.queue.redis.keys import pool_keys
from cluster.settings import EngineKind, load_settings
from cluster.trust.secret import ClusterSecret
from deployments.engines.vllm.startup.processes import end_all
from tests.chaos.golden import Golden
from tests.chaos.history import Failed
from tests.chaos.masters import Masters
from tests.chaos.node import HOST, Node, read_metrics, redis_client
from tests.chaos.process import Process
from tests.chaos.proxy import ChaosProxy
from tests.chaos.release import ROOT, unpack
from tests.chaos.sockets import holder_of
from tests.cluster.queue.servers import find_binary
from tests.support.ports import free_port
from tests.support.waiting import TimedOutError, until

POOL = "demo"
READY_S = 300.0
"""How long a process may take to be ready; a real engine on a busy machine is the slowest."""
LOOK_S = 0.1
"""Time between two looks at a router's metrics, seconds."""
LEAVE_S = 5.0
"""How long engine processes may take to follow a replica that was killed."""
FAST: dict[str, Any] = {
    "queue": {"heartbeat_s": 0.25, "lease_s": 1.5, "attach_grace_s": 3.0},
    "router": {"link_ping_s": 1.0, "drain_s": 10.0},
    "replica": {"drain_s": 10.0},
    "redis": {"timeout_s": 1.0},
    "jobs": {"poll_s": 0.5, "lease_s": 2.0},
    "cluster": {"log_level": "info"},
}
"""So that a scenario takes seconds; about a quarter of production's, which real processes on a busy machine still keep.
"""
SIM: dict[str, Any] = {"base_ms": 20.0, "per_token_us": 1.0, "max_num_seqs": 16}
"""Fifty tokens per second and stream."""
SLOW: dict[str, Any] = {"queue": {"heartbeat_s": 0.5, "lease_s": 3.0, "attach_grace_s": 5.0}}
"""Instead of `FAST`'s where real engines take all cores, and loading one takes them for twenty seconds."""
VLLM: dict[str, Any] = {"max_num_seqs": 16, "kv_cache_memory_mb": 64}


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Says what a scenario's cluster looks like."""

    routers: int = 2
    replicas: int = 2
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings beside `FAST`."""
    sim: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the simulated engine beside `SIM`."""
    update_from: str = ""
    """A commit whose code runs in routers until they are started again; empty: this code everywhere."""
    engine: EngineKind = EngineKind.SIM
    ranks: int = 1
    """Of each engine; two need a real one."""
    vllm: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the real engine beside `VLLM`; its model is the demo model."""
    kept: bool = False
    """A replica that ends by itself is started again, as Serve does."""

    @property
    def real(self) -> bool:
        """Whether its engines are real ones."""
        return self.engine is EngineKind.VLLM

    redis: tuple[str, ...] = ()
    """Further arguments of redis-server."""
    masters: int = 0
    """Servers of a Redis Cluster, named redis-0 and so on, in place of one Redis. No proxy is before them."""
    followers: bool = False
    """Whether each of these servers has another one that follows it."""
    cells: int = 1
    """Cells of the pool."""
    launcher: str = ""
    """Whether pools can come and go: "whole" has a launcher, "cleanup" and "registry" one without that protection."""


class ChaosCluster:
    """Starts, breaks and ends the processes."""

    def __init__(self, folder: Path, plan: ClusterPlan) -> None:
        self.plan = plan
        self.folder = folder
        self.nodes: dict[str, Node] = {}
        self.dead: list[Node] = []
        """Processes that a restart replaced."""
        self.proxies: dict[str, ChaosProxy] = {}
        """By link: "client>router-0", "http>router-0", "router-0>redis", "replica-0>redis", "router>replica-0"."""
        self.redis_port = free_port()
        self.masters = Masters(plan.masters, followers=plan.followers) if plan.masters else None
        self._journals: dict[Path, Node] = {}
        self._dangling: list[asyncio.StreamWriter] = []
        self.victim = ""
        """Process that a fault chose last."""
        self.notes: dict[str, float] = {}
        """Figures that faults leave behind as their proof."""
        self.killers: list[Failed] = []
        """How requests that kill engines ended."""
        self.victims: list[psutil.Process] = []
        """Engine processes that were killed last."""
        self.golden: Golden | None = None
        """What its engines say; see `golden.golden_of`."""
        self.unread: tuple[Any, list[Any]] = (None, [])
        """Channel and calls of clients that do not read."""
        self.doubt = ""
        """What the fault that was asked last for its proof found instead."""
        self.calls: dict[str, asyncio.Task[Any]] = {}
        """Calls of operators, and streams, that go on while something breaks."""
        self.keys: list[Any] = []
        """Keys with what they have begun (`key_faults.KeyInUse`)."""

    # --- names --------------------------------------------------------------------------------------------------------

    @property
    def routers(self) -> tuple[str, ...]:
        """Names of the routers."""
        return tuple(f"router-{number}" for number in range(self.plan.routers))

    @property
    def replicas(self) -> tuple[str, ...]:
        """Names of the replicas; also their ids in the registry."""
        return tuple(f"replica-{number}" for number in range(self.plan.replicas))

    @property
    def targets(self) -> tuple[str, ...]:
        """Where clients reach the routers."""
        return tuple(self.proxies[f"client>{name}"].address for name in self.routers)

    @property
    def http_targets(self) -> tuple[str, ...]:
        """Where clients that speak HTTP reach the routers."""
        return tuple(self.proxies[f"http>{name}"].address for name in self.routers)

    def journals(self) -> dict[Path, Node]:
        """Return the files in which engines noted what they decoded, and the process of each."""
        return dict(self._journals)

    def link(self, name: str) -> tuple[ChaosProxy, str]:
        """Return the proxy of a link and whose connections are meant: "router-0>replica-1" is one router's only."""
        if (proxy := self.proxies.get(name)) is not None:
            return proxy, ""
        source, target = name.split(">")
        return self.proxies[f"router>{target}"], source

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything; when it returns every router is linked to every replica."""
        self.secret_file = self.folder / "secret"
        ClusterSecret.create_file(self.secret_file)
        for name in self.routers:
            await self._proxy(f"client>{name}")
            await self._proxy(f"http>{name}")
        for name in self.replicas:
            await self._proxy(f"router>{name}", whose=self._router_at)
        others = (*self.routers, *self.replicas, *(("launcher",) if self.plan.launcher else ()))
        if self.masters is not None:
            await asyncio.gather(*(self.start_node(name) for name in self.masters.names))
            await self.masters.join()
        else:
            for name in others:
                await self._proxy(f"{name}>redis", f"{HOST}:{self.redis_port}")
            await self.start_node("redis")
        await asyncio.gather(*(self.start_node(name) for name in others))
        await self.linked()

    async def _proxy(self, name: str, target: str = "", whose: Any = None) -> None:
        proxy = self.proxies[name] = ChaosProxy(name, target, whose)
        await proxy.start()

    async def close(self) -> None:
        """End every process and proxy."""
        for call in self.calls.values():
            call.cancel()
        await asyncio.gather(*self.calls.values(), return_exceptions=True)
        families = [process for node in self.nodes.values() for process in node.look()]
        for node in self.nodes.values():
            node.process.kill()
        await asyncio.gather(*(node.process.wait() for node in self.nodes.values()))
        await asyncio.to_thread(end_all, families, LEAVE_S)
        for proxy in self.proxies.values():
            await proxy.close()
        for writer in self._dangling:
            writer.close()

    async def start_node(self, name: str) -> None:
        """Start a process, again if it has ended; returns when it is ready."""
        if (old := self.nodes.get(name)) is not None:
            self.dead.append(old)
        if name == "redis":
            await self._start_redis()
            return
        if self.masters is not None and name in self.masters.names:
            node = self.nodes[name] = Node(name, self._launch(name, self.masters.command(name, self.folder)))
            await until(partial(self.masters.answers, name), 20)
            node.process.check()
            return
        number = sum(node.name == name for node in self.dead)
        ready = self.folder / f"{name}.{number}.ready"
        common = ("--settings-json", str(self._settings(name)), "--ready-file", str(ready))
        journal: Path | None = None
        if name.startswith("router"):
            command = (sys.executable, "-m", "router", "--port", "0", *common)
        elif name == "launcher":
            command = (sys.executable, "-m", "tests.chaos.launcher_process", *common, "--kind", self.plan.launcher)
        else:
            journal = self.folder / f"{name}.{number}.jsonl"
            journal.touch()
            announce = self.proxies[f"router>{name}"].address
            command = (
                *(sys.executable, "-m", "tests.chaos.replica_process", "--pool", POOL),
                # As under Serve: a replica that is started again has another id.
                *("--replica-id", f"{name}.{number}" if number and self.plan.kept else name),
                *("--announce", announce, "--journal", str(journal), *common),
                *("--rank", str(self.replicas.index(name))),
            )
        old = self.plan.update_from if name.startswith("router") and not number else ""
        node = self.nodes[name] = Node(name, self._launch(name, command, self._source(old)))
        if journal is not None:
            self._journals[journal] = node
        try:
            await until(lambda: ready.exists() or not node.running, READY_S)
        except TimedOutError:
            raise TimedOutError(f"{name} is not ready; end of its log:\n{node.process.log_tail()}") from None
        node.process.check()
        node.facts = json.loads(ready.read_text())
        if name.startswith("router"):
            self.proxies[f"client>{name}"].target = f"{HOST}:{node.facts['port']}"
            self.proxies[f"http>{name}"].target = f"{HOST}:{node.facts.get('http_port', 0)}"
        elif name != "launcher":
            self.proxies[f"router>{name}"].target = node.facts["address"]

    def _source(self, commit: str) -> Path:
        folder = self.folder / "release"
        return ROOT if not commit else folder if folder.exists() else unpack(commit, folder)

    def _launch(self, name: str, command: tuple[str, ...], source: Path = ROOT) -> Process:
        environ = {"PYTHONPATH": f"{source}{os.pathsep}{source / 'proto'}", "PENSTOCK_SETTINGS": ""}
        return Process(name, command, self.folder / f"{name}.log", environ, source)

    def _settings(self, name: str) -> Path:
        flags: dict[str, Any] = {key: dict(value) for key, value in FAST.items()}
        for source in (SLOW if self.plan.real else {}, self.plan.settings):
            for key, value in source.items():
                flags[key] = {**flags.get(key, {}), **value}
        if not self.plan.update_from:
            # Another release may know no HTTP.
            flags["router"] |= {"http": {"port": 0}}
        flags["cluster"] |= {"state_dir": str(self.folder / "state" / name), "secret_file": str(self.secret_file)}
        if self.masters is not None:
            flags["redis"]["url"] = self.masters.url
        else:
            flags["redis"]["url"] = f"redis://{self.proxies[f'{name}>redis'].address}"
        engines = {"sim": {**SIM, **self.plan.sim}, "vllm": {**VLLM, **self.plan.vllm}}
        pool: dict[str, Any] = {
            "model": "demo",
            "engine": self.plan.engine.value,
            "tensor_parallel_size": self.plan.ranks,
        }
        if self.plan.cells > 1:
            # Another release may know no cells.
            pool |= {"cells": self.plan.cells, "replicas": self.plan.replicas}
        flags["pools"] = {POOL: {**pool, **engines}}
        path = self.folder / f"{name}.json"
        load_settings(flags=flags, environ={})
        # Only what differs from the defaults, as an operator's file has it: another release knows other settings.
        path.write_text(json.dumps(flags), encoding="utf-8")
        return path

    # --- Redis --------------------------------------------------------------------------------------------------------

    async def _start_redis(self) -> None:
        binary = find_binary("7.0") or find_binary("6.2")
        if binary is None:
            raise RuntimeError("there is no redis-server on this machine")
        data = self.folder / "redis"
        data.mkdir(exist_ok=True)
        command = (
            *(binary, "--port", str(self.redis_port), "--bind", HOST, "--dir", str(data), "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction"),
            # DEBUG is off by default since 7.0, which introduced the switch.
            *(("--enable-debug-command", "yes") if binary == find_binary("7.0") else ()),
            *self.plan.redis,
        )
        node = self.nodes["redis"] = Node("redis", self._launch("redis", command))

        async def answers() -> bool:
            node.process.check()
            with contextlib.suppress(RedisError, OSError):
                return bool(await self.redis("PING"))
            return False

        await until(answers, 20)

    async def redis(self, *command: str | int) -> Any:
        """Send Redis one command, not through a proxy."""
        client = redis_client(self.redis_port, 5.0)
        try:
            return await client.execute_command(*command)
        finally:
            await client.aclose()

    async def redis_nowait(self, *command: str) -> None:
        """Send Redis one command and do not wait for the answer."""
        packed = f"*{len(command)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in command)
        _reader, writer = await asyncio.open_connection(HOST, self.redis_port)
        writer.write(packed.encode())
        await writer.drain()
        self._dangling.append(writer)

    def aof(self) -> Path:
        """Find the append-only file that is written to."""
        folder = self.folder / "redis"
        # Version 7 has a folder with a base and increments, earlier ones a single file.
        return max((path for path in folder.rglob("*.aof")), key=lambda path: path.stat().st_mtime)

    async def sizes(self) -> dict[str, int]:
        """Count what each of the pool's keys holds, by its short name; what is empty is left out."""
        if self.masters is not None:
            return await self.masters.sizes(POOL, self.plan.cells)
        client = redis_client(self.redis_port, 5.0)
        counts = {b"hash": "HLEN", b"zset": "ZCARD", b"string": "STRLEN"}
        try:
            found = {}
            for key in pool_keys(POOL):
                kind = await client.type(key)
                if kind in counts:
                    found[key.rsplit("}:", 1)[1]] = int(await client.execute_command(counts[kind], key))
            return found
        finally:
            await client.aclose()

    # --- looking ------------------------------------------------------------------------------------------------------

    def _router_at(self, local: int, remote: int) -> str:
        running = {node.pid: name for name in self.routers if (node := self.nodes.get(name)) and node.running}
        return running.get(holder_of(local, remote, running) or 0, "")

    def state(self, name: str) -> str:
        """Return a process' state letter as /proc has it, such as S, R, T or Z; "" when it is gone."""
        try:
            text = Path(f"/proc/{self.nodes[name].pid}/stat").read_text(encoding="ascii")
        except OSError:
            return ""
        return text.rpartition(")")[2].split()[0]

    async def metrics(self, router: str) -> dict[str, float]:
        """Read a router's metrics; samples of one name are added up."""
        return await asyncio.to_thread(read_metrics, int(self.nodes[router].facts["metrics_port"]))

    def memory(self) -> dict[str, int]:
        """Resident bytes of each running process."""
        found = {}
        for name, node in self.nodes.items():
            with contextlib.suppress(psutil.Error):
                found[name] = psutil.Process(node.pid).memory_info().rss
        return found

    async def linked(self, routers: tuple[str, ...] = ()) -> None:
        """Wait until every running router is linked to every running replica."""
        replicas = sum(self.nodes[name].running for name in self.replicas)
        for name in routers or self.routers:
            if not self.nodes[name].running:
                continue

            async def all_up(name: str = name) -> bool:
                # Each look reads all metrics, and the links need this process to come up.
                await asyncio.sleep(LOOK_S)
                with contextlib.suppress(OSError):
                    return (await self.metrics(name)).get("penstock_router_links_up", 0) >= replicas
                return False

            await until(all_up, 30)

    # --- breaking -----------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """Send SIGKILL."""
        self.nodes[name].look()
        self.nodes[name].process.kill()
        self.nodes[name].died_at = time.monotonic()

    def terminate(self, name: str) -> None:
        """Send SIGTERM."""
        self.nodes[name].process.send(signal.SIGTERM)

    def pause(self, name: str) -> None:
        """Send SIGSTOP, to engine processes too."""
        self.nodes[name].process.send_family(signal.SIGSTOP)
        self.nodes[name].paused.append((time.monotonic(), float("inf")))

    def resume(self, name: str) -> None:
        """Send SIGCONT."""
        node = self.nodes[name]
        began, _never = node.paused.pop()
        node.paused.append((began, time.monotonic()))
        node.process.send_family(signal.SIGCONT)

    async def knock(self, router: str, connections: int) -> None:
        """Open connections to a router that say nothing, and leave them open."""
        port = int(self.nodes[router].facts["port"])
        for _ in range(connections):
            _reader, writer = await asyncio.open_connection(HOST, port)
            self._dangling.append(writer)

    def signal_engine(self, name: str, part: str, most: int, number: signal.Signals) -> list[psutil.Process]:
        """Send a signal to engine processes of a replica whose names have this part, `most` at most; returns them."""
        found = [process for process in self.nodes[name].look() if part in process.name()][:most]
        for process in found:
            process.send_signal(number)
        return found
