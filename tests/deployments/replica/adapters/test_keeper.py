"""Adapters of the registry on replicas with simulated engines, over Redis in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from cluster.clock import SystemClock
from cluster.errors import EngineRequestError
from cluster.models import GenerationSpec
from cluster.redis.in_process.server import InProcessRedis
from cluster.registry.adapters import (
    AdapterState,
    ReplicaReport,
    adapter_status,
    wait_until_loaded,
    wait_until_unused,
)
from cluster.registry.contract import Author, Edit, Watcher
from cluster.registry.redis.store import RedisRegistryStore
from cluster.registry.view import RegistryView
from cluster.settings import PoolSettings, SimSettings
from deployments.engines.sim.engine import SimEngine
from deployments.replica.adapters.keeper import AdapterKeeper
from tests.deployments.engines.recorder import Recorder, generate, greedy
from tests.support.waiting import until

ME = Author("ops")
PROMPT = (5, 6, 7)


def make_files(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


def put(name: str, source: Path, pool: str = "demo", **fields: str) -> Edit:
    return Edit("adapter", name, json.dumps({"pool": pool, "source": str(source), **fields}).encode())


class Fleet:
    """Replicas that follow a registry, and the view of a router."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.redis = InProcessRedis(SystemClock())
        self.router = RegistryView(RedisRegistryStore(self.redis), Watcher("router", "router"))
        self.keepers: dict[str, AdapterKeeper] = {}
        self.engines: dict[str, SimEngine] = {}

    async def add(self, name: str, pool: str = "demo", **sim: float) -> AdapterKeeper:
        engine = SimEngine(PoolSettings(engine="sim", sim=SimSettings(base_ms=1.0, **sim)), None)
        await engine.start()
        self.engines[name] = engine
        self.keepers[name] = AdapterKeeper(RedisRegistryStore(self.redis), Watcher(name, "replica", pool), engine, ())
        await self.keepers[name].start(self.folder / "copies")
        return self.keepers[name]

    async def states(self, name: str) -> dict[str, str]:
        found = (await adapter_status(self.router, [name])).get(name, ())
        return {each.replica: each.report.state.value for each in found}

    async def tell(self, name: str, states: list[str]) -> bool:
        """Return whether replicas say this of an adapter, also of a deleted one."""
        told = [ReplicaReport.read(each.watcher.report).adapters.get(name) for each in await self.router.watchers()]
        return states == [each.state.value for each in told if each is not None]

    async def is_used(self) -> bool:
        return await wait_until_unused(self.router, "poet", 0.0) == 1

    async def tokens(self, replica: str, adapter: str) -> list[int]:
        spec = GenerationSpec(PROMPT, greedy(), lora_adapter=adapter)
        engine = self.keepers[replica].sequences
        recorder, _end = await generate(engine, spec)  # type: ignore[arg-type]
        return recorder.tokens


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    made = Fleet(folder)
    try:
        yield made
    finally:
        for name, keeper in made.keepers.items():
            await made.engines[name].close()
            await keeper.close()
        await made.router.close()


async def test_an_adapter_is_loaded_everywhere_when_its_put_is_acknowledged(tmp_path: Path) -> None:
    poet = make_files(tmp_path / "poet")
    async with fleet(tmp_path) as made:
        for name in ("a", "b"):
            await made.add(name, adapter_load_s=0.1)
        await made.add("other", "elsewhere")
        await made.router.apply([put("poet", poet)], ME)
        assert await made.states("poet") == {"a": "loading", "b": "loading"}
        states = await wait_until_loaded(made.router, "poet", 10.0)
        assert {each.replica: each.report.state for each in states} == dict.fromkeys("ab", AdapterState.LOADED)
        assert len({each.report.digest for each in states}) == 1
        assert all(each.report.seconds >= 0.1 for each in states)
        assert await made.tokens("a", "poet") == await made.tokens("b", "poet") != await made.tokens("a", "")
        # A new replica has it before it takes work.
        await made.add("c")
        assert await made.tokens("c", "poet") == await made.tokens("a", "poet")
        await wait_until_loaded(made.router, "poet", 10.0)
        assert await made.states("poet") == dict.fromkeys("abc", "loaded")


async def test_a_replica_that_can_not_load_says_why_and_serves_the_rest(tmp_path: Path) -> None:
    poet = make_files(tmp_path / "poet")
    async with fleet(tmp_path) as made:
        await made.add("a")
        await made.add("full", max_loras=0)
        await made.router.apply([put("poet", poet), put("nowhere", tmp_path / "nowhere")], ME)
        states = {each.replica: each.report for each in await wait_until_loaded(made.router, "poet", 10.0)}
        assert states["a"].state is AdapterState.LOADED
        assert (states["full"].state, states["full"].why) == (
            AdapterState.FAILED,
            "sim.max_loras = 0 adapters are loaded already",
        )
        await wait_until_loaded(made.router, "nowhere", 10.0)
        with pytest.raises(EngineRequestError, match=r"^adapter 'nowhere' could not be loaded$"):
            await made.tokens("a", "nowhere")
        assert await made.tokens("a", "poet")
        # A new replica begins to serve in spite of them.
        await made.add("new")
        assert await made.tokens("new", "poet")


async def test_new_files_under_a_name_replace_the_old_ones_while_requests_run(tmp_path: Path) -> None:
    poet = make_files(tmp_path / "poet")
    async with fleet(tmp_path) as made:
        keeper = await made.add("a")
        await made.router.apply([put("poet", poet)], ME)
        await wait_until_loaded(made.router, "poet", 10.0)
        before = await made.tokens("a", "poet")
        running = Recorder()
        await keeper.sequences.submit("long", GenerationSpec(PROMPT, greedy(20_000), lora_adapter="poet"), running)
        await until(lambda: len(running.tokens) > 1)
        make_files(poet, b"others")
        await made.router.apply([put("poet", poet, base="again")], ME)
        await wait_until_loaded(made.router, "poet", 10.0)
        assert await made.tokens("a", "poet") != before
        assert running.tokens[: len(before)] == before, "what began with the old one keeps it"
        assert len(list((tmp_path / "copies").glob("*/copy-*"))) == 2
        await keeper.sequences.abort(["long"])
        await until(lambda: len(list((tmp_path / "copies").glob("*/copy-*"))) == 1)


async def test_deletion_tells_who_uses_it_and_ends_when_it_is_gone(tmp_path: Path) -> None:
    poet = make_files(tmp_path / "poet")
    async with fleet(tmp_path) as made:
        keeper = await made.add("a")
        await made.router.apply([put("poet", poet)], ME)
        await wait_until_loaded(made.router, "poet", 10.0)
        running = Recorder()
        await keeper.sequences.submit("long", GenerationSpec(PROMPT, greedy(20_000), lora_adapter="poet"), running)
        await until(made.is_used)
        await made.router.apply([Edit("adapter", "poet", None)], ME)
        await until(lambda: made.tell("poet", ["unloading"]))
        with pytest.raises(EngineRequestError, match="adapter 'poet' is not loaded"):
            await made.tokens("a", "poet")
        await keeper.sequences.abort(["long"])
        await until(lambda: made.tell("poet", []))
        assert await wait_until_unused(made.router, "poet", 0.0) == 0
        with suppress(FileNotFoundError):
            assert list((tmp_path / "copies").glob("*/copy-*")) == []


async def test_an_adapter_that_the_engine_fails_to_forget_keeps_no_other_from_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path) as made:
        await made.add("a")
        await made.router.apply([put("poet", make_files(tmp_path / "poet"))], ME)
        await wait_until_loaded(made.router, "poet", 10.0)

        async def fails(_name: str) -> None:
            raise RuntimeError("a worker failed")

        monkeypatch.setattr(made.engines["a"], "unload_adapter", fails)
        await made.router.apply([Edit("adapter", "poet", None)], ME)
        await made.router.apply([put("coder", make_files(tmp_path / "coder"))], ME)
        states = await wait_until_loaded(made.router, "coder", 10.0)
        assert [each.report.state for each in states] == [AdapterState.LOADED]
        await until(lambda: made.tell("poet", []))
