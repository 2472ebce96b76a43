"""`python -m loadtest.benchmarks.registry`: what a large registry costs a request in Redis, and how soon a change is in
force.

Two clusters with simulated engines are up at the same time and take turns. One has ten tenants, keys and adapters, the
other 10,000 tenants, 100,000 keys and 1,000 adapters. Each request uses a key drawn by chance, every second one also an
adapter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
from rich.console import Console
from rich.table import Table

from cluster.bootstrap.local import LocalCluster
from cluster.registry.contract import Author, Edit, Position
from cluster.registry.redis.store import RedisRegistryStore
from cluster.settings import load_settings
from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.ending import end
from loadtest.benchmarks.tokens.cpu import cpu_seconds
from loadtest.benchmarks.tokens.figures import interval
from penstock.client import AsyncClient, RegistryEdit
from penstock.v1 import inference_pb2 as api
from penstock.v1 import inference_pb2_grpc as api_grpc
from penstock.v1 import types_pb2 as types
from router.identity.key import hash_key, key_id, mint_key

BAR = 1.1
"""Most CPU of Redis per request with the large registry, as a multiple of that with the small one."""
IN_FORCE_S = 2.0
"""Longest time until a change is in force everywhere."""
LABELS = {"small": "10 of each", "large": "10,000 tenants, 100,000 keys, 1,000 adapters"}
_USED = 2_000
"""Keys of a registry that requests are drawn from."""
_CHUNK = 1_000
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class _Size:
    """Numbers of entries of a registry."""

    tenants: int = 10
    keys: int = 10
    adapters: int = 10


SIZES = {"small": _Size(), "large": _Size(10_000, 100_000, 1_000)}


@dataclass(frozen=True, slots=True)
class _Path:
    cluster: LocalCluster
    stub: Any
    keys: Sequence[str]
    adapters: int

    def redis_cpu_s(self) -> float:
        return float(cpu_seconds([psutil.Process(self.cluster.redis.pid)])) if self.cluster.redis is not None else 0.0

    def router_mb(self) -> float:
        pids = [router.process.pid for router in self.cluster.routers]
        return sum(psutil.Process(pid).memory_info().rss for pid in pids) / len(pids) / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-registry", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rounds", type=int, default=7, help="turns of both clusters (default %(default)s)")
    parser.add_argument("--requests", type=int, default=1_500, help="requests of a turn (default %(default)s)")
    options = parser.parse_args()
    import uvloop

    return int(uvloop.run(_bench(options, screen())))


async def _bench(options: argparse.Namespace, console: Console) -> int:
    draw = random.Random(7)
    async with AsyncExitStack() as stack:
        paths = {}
        for name, size in SIZES.items():
            with console.status(f"starting a cluster with {LABELS[name]}"):
                paths[name] = await stack.enter_async_context(_cluster(size, draw))
        for path in paths.values():
            await _turn(path, options.requests, draw)
        rounds: list[dict[str, float]] = []
        for number in range(options.rounds):
            found = {}
            for name in list(paths)[:: 1 if number % 2 else -1]:
                with console.status(f"round {number + 1} of {options.rounds}: {LABELS[name]}"):
                    found[name] = await _turn(paths[name], options.requests, draw)
            rounds.append(found)
        in_force = [await _change(paths["large"].cluster, number) for number in range(20)]
        memory = {name: path.router_mb() for name, path in paths.items()}
    ratios = [each["large"] / each["small"] for each in rounds]
    fields = {
        "redis_cpu_us_per_request": {name: statistics.median(each[name] for each in rounds) for name in SIZES},
        "redis_cpu_ratio": statistics.median(ratios),
        "interval": interval(ratios),
        "rounds": ratios,
        "in_force_s": {"median": statistics.median(in_force), "max": max(in_force)},
        "router_mb": memory,
    }
    _print(fields, console)
    if options.json:
        options.json.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    return 0


@asynccontextmanager
async def _cluster(size: _Size, draw: random.Random) -> AsyncIterator[_Path]:
    with tempfile.TemporaryDirectory() as folder:
        own: dict[str, Any] = {
            "cluster": {"state_dir": folder, "log_level": "error"},
            "redis": {"timeout_s": 30.0},
            "router": {"port": 0, "processes": 2},
            "pools": {"demo": {"engine": "sim", "replicas": 1, "sim": {"base_ms": 1.0, "max_loras": 2_000}}},
        }
        settings = load_settings(flags=own)
        async with LocalCluster(settings, lambda step, text: None) as cluster:
            adapter = Path(folder) / "adapter"
            adapter.mkdir()
            (adapter / "adapter_config.json").write_text("{}")
            (adapter / "adapter_model.safetensors").write_bytes(b"weights")
            minted = await _fill(cluster.settings.redis.url, size, adapter, draw)
            channel = grpc.aio.insecure_channel(cluster.target)
            try:
                path = _Path(cluster, api_grpc.InferenceServiceStub(channel), minted, size.adapters)
                await _known(path)
                yield path
            finally:
                await channel.close(None)


async def _fill(url: str, size: _Size, adapter: Path, draw: random.Random) -> list[str]:
    """Fill a registry. Return some of its keys."""
    edits = [Edit("tenant", f"tenant-{number}", b'{"weight":2.0}') for number in range(size.tenants)]
    source = json.dumps({"pool": "demo", "source": str(adapter)}).encode()
    edits += [Edit("adapter", f"adapter-{number}", source) for number in range(size.adapters)]
    used = set(draw.sample(range(size.keys), min(size.keys, _USED)))
    minted: list[str] = []
    for number in range(size.keys):
        key = mint_key()
        if number in used:
            minted.append(key)
        content = {"sha256": hash_key(key), "tenant": f"tenant-{number % size.tenants}", "role": "user"}
        edits.append(Edit("key", key_id(key) or "", json.dumps(content).encode()))
    store = RedisRegistryStore(url, 60.0)
    known = Position()
    try:
        for start in range(0, len(edits), _CHUNK):
            known = await store.apply(edits[start : start + _CHUNK], Author("bench"), known) or known
    finally:
        await store.close()
    return minted


async def _known(path: _Path) -> None:
    """Wait until the routers know the last of the keys, and the replica has the last of the adapters."""
    early = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND)
    while True:
        try:
            await _send(path, path.keys[-1], f"adapter-{path.adapters - 1}")
        except grpc.aio.AioRpcError as error:
            if error.code() not in early or "could not be loaded" in (error.details() or ""):
                raise
            await asyncio.sleep(0.2)
        else:
            return


async def _send(path: _Path, key: str, model: str = "demo") -> None:
    sampling = types.SamplingParams(max_tokens=1, ignore_eos=True)
    request = api.GenerateRequest(model=model, prompt=types.Prompt(text="one two"), sampling=sampling)
    await path.stub.Generate(request, metadata=(("authorization", f"Bearer {key}"),))


async def _turn(path: _Path, requests: int, draw: random.Random) -> float:
    """Return microseconds of Redis' CPU per request."""
    before = path.redis_cpu_s()
    models = ["demo" if number % 2 else f"adapter-{draw.randrange(path.adapters)}" for number in range(requests)]
    left = zip(draw.choices(path.keys, k=requests), models, strict=True)

    async def worker() -> None:
        for key, model in left:
            await _send(path, key, model)

    await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
    return 1e6 * (path.redis_cpu_s() - before) / requests


async def _change(cluster: LocalCluster, number: int) -> float:
    """Return how long a change of a tenant takes until every router and replica knows it, in seconds."""
    async with AsyncClient(cluster.target) as client:
        began = time.monotonic()
        result = await client.edit_registry([RegistryEdit("tenant", "changed", {"weight": 2 + number})], wait=10.0)
        if result.behind:
            raise RuntimeError(f"not known after 10 s by {', '.join(result.behind)}")
        return time.monotonic() - began


def _print(fields: dict[str, Any], console: Console) -> None:
    table = Table(title="CPU of Redis by size of the registry")
    add_columns(table, "registry", "us/request", "router MiB", "ratio", "95 %", "bar", words=("registry",))
    for name, label in LABELS.items():
        row = [label, f"{fields['redis_cpu_us_per_request'][name]:.0f}", f"{fields['router_mb'][name]:.0f}"]
        if name == "large":
            low, high = fields["interval"]
            row += [f"{fields['redis_cpu_ratio']:.3f}", f"{low:.2f} to {high:.2f}", f"at most {BAR}"]
        table.add_row(*row)
    print_table(table, console)
    in_force = fields["in_force_s"]
    console.print(
        f"a change is known everywhere after {in_force['median']:.2f} s, at most {in_force['max']:.2f} s "
        f"(bar {IN_FORCE_S:g} s)",
        highlight=False,
    )


if __name__ == "__main__":
    end("bench-registry", main)
