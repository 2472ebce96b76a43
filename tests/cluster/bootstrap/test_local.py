"""A local cluster outlives its autoscaler and its routers. Processes are stand-ins."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from cluster.bootstrap import console, local, ready, without_ray
from cluster.bootstrap.local import LocalCluster
from cluster.bootstrap.process import ChildProcess
from cluster.bootstrap.ready import RouterProcess
from cluster.bootstrap.state_dir import claimed, is_held
from cluster.bootstrap.supervisor import BackOff, supervise
from cluster.bootstrap.without_ray import RaylessCluster, _ReplicaPlace
from cluster.errors import BootstrapError
from cluster.ray_serve.client import AppStatus
from cluster.ray_serve.start_report import Failure, StartReport, report_base
from cluster.settings import PoolSettings, load_settings
from tests.support.waiting import ended, until

LIVES = (sys.executable, "-c", "import time; time.sleep(600)")
ENDS = (sys.executable, "-c", "import sys; sys.exit('port 9091 is in use')")
HANGS = LIVES
"""It never writes its ready file."""


STARTS = AppStatus("DEPLOYING", "", 0, 1)
RUNS = AppStatus("RUNNING", "", 1, 1)
POOL = PoolSettings(engine="sim")


class Serve:
    """Answers as Serve does while replicas start."""

    def __init__(self, *apps: AppStatus, **others: AppStatus) -> None:
        self.apps, self.others = list(apps), others

    async def deploy(self, config: dict[str, Any]) -> None: ...

    async def status(self) -> dict[str, AppStatus]:
        demo = self.apps.pop(0) if len(self.apps) > 1 else self.apps[0]
        return {"penstock-demo": demo, **{f"penstock-{name}": app for name, app in self.others.items()}}


class StandIns(LocalCluster):
    """A cluster of stand-ins with a Ray, which is up at once, and an autoscaler."""

    def __init__(self, folder: Path) -> None:
        autoscale = {"mode": "active", "max_replicas": 2}
        flags = {"cluster": {"state_dir": folder}, "pools": {"demo": {"engine": "sim", "autoscale": autoscale}}}
        super().__init__(load_settings(flags=flags, environ={}), lambda _step, _text: None)
        self.run_dir.mkdir(parents=True)
        self.rays: list[ChildProcess] = []
        self.stand_in = Serve(RUNS)
        """Serve of each Ray. The applications are up at once."""

    async def _start_ray(self) -> None:
        self.ray_host = await ChildProcess.start("ray", LIVES, self.run_dir / "ray.log")
        self.rays.append(self.ray_host)
        self.serve, self._gpus = self.stand_in, 0  # type: ignore[assignment]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[StandIns]:
    stand_ins = StandIns(tmp_path)
    await stand_ins._start_ray()
    yield stand_ins
    await stand_ins.stop()


class Autoscalers:
    """Counts the autoscalers that are started, and puts a program in their place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, program: Sequence[str]) -> None:
        self.started: list[ChildProcess] = []
        start = ChildProcess.start

        async def instead(
            name: str, command: Sequence[str], log_file: Path, environ: Mapping[str, str] | None = None
        ) -> ChildProcess:
            process = await start(name, program if name == "autoscaler" else command, log_file, environ)
            if name == "autoscaler":
                self.started.append(process)
            return process

        monkeypatch.setattr(ChildProcess, "start", instead)


def supervised(cluster: LocalCluster) -> asyncio.Task[None]:
    return asyncio.create_task(supervise(cluster, BackOff(0.01, 0.02), 0.01, BackOff(0.01, 0.02)))


async def test_an_autoscaler_that_ends_and_does_not_start_again_leaves_ray_alone(
    cluster: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    autoscalers = Autoscalers(monkeypatch, ENDS)
    cluster.autoscaler = await ChildProcess.start("autoscaler", ENDS, cluster.run_dir / "autoscaler.log")
    await cluster.autoscaler.wait()
    watching = supervised(cluster)

    await until(lambda: len(autoscalers.started) >= 4 or watching.done())

    assert (False, 1, True) == (watching.done(), len(cluster.rays), cluster.rays[0].running)
    await ended(watching)


async def test_a_replaced_ray_stays_where_the_autoscaler_does_not_start(
    cluster: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    autoscalers = Autoscalers(monkeypatch, ENDS)
    cluster.rays[0].kill()
    await cluster.rays[0].wait()
    watching = supervised(cluster)

    await until(lambda: len(autoscalers.started) >= 4 or watching.done() or len(cluster.rays) > 2)

    assert (False, 2, True) == (watching.done(), len(cluster.rays), cluster.rays[1].running)
    await ended(watching)


async def test_a_pool_that_does_not_start_again_with_ray_takes_no_other_one_down(
    cluster: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another restart of Ray would end the replicas of all pools, again and again."""
    autoscalers = Autoscalers(monkeypatch, ENDS)
    pools = {**cluster.settings.pools, "broken": POOL}
    cluster.settings, cluster.pools = cluster.settings.model_copy(update={"pools": pools}), pools
    cluster.stand_in.others["broken"] = AppStatus("DEPLOY_FAILED", "no such model", 0, 1)
    cluster.rays[0].kill()
    await cluster.rays[0].wait()
    watching = supervised(cluster)

    # The autoscaler follows when Ray is back.
    await until(lambda: bool(autoscalers.started) or watching.done() or len(cluster.rays) > 2)

    assert (False, 2, True) == (watching.done(), len(cluster.rays), cluster.rays[1].running)
    await ended(watching)


@pytest.mark.slow
async def test_an_autoscaler_that_hangs_as_it_starts_is_ended_and_tried_again(
    cluster: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "START_S", 0.2)
    autoscalers = Autoscalers(monkeypatch, HANGS)
    watching = supervised(cluster)

    await until(lambda: len(autoscalers.started) >= 3 or watching.done())

    assert (False, [False, False]) == (watching.done(), [one.running for one in autoscalers.started[:2]])
    await ended(watching)


async def test_ray_that_ends_while_an_autoscaler_hangs_is_replaced_at_once(
    cluster: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    autoscalers = Autoscalers(monkeypatch, HANGS)
    watching = supervised(cluster)
    await until(lambda: len(autoscalers.started) == 1)
    cluster.rays[0].kill()

    # Well before the autoscaler's time is over.
    await until(lambda: len(cluster.rays) == 2, seconds=local.START_S / 2)

    assert not watching.done()
    await ended(watching)


async def test_processes_have_time_to_start_on_a_loaded_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cores with other work take a minute for a router. One that ends is noticed at once."""
    given: dict[str, float] = {}

    async def noted(_path: Path, process: ChildProcess, seconds: float, *_: object) -> NoReturn:
        given[process.name] = seconds
        raise BootstrapError(process.name, "it is not waited for")

    for module in (ready, local, console, without_ray):
        monkeypatch.setattr(module, "wait_file", noted)
    start = ChildProcess.start
    monkeypatch.setattr(ChildProcess, "start", lambda name, _command, log, *_: start(name, LIVES, log))
    stand_ins = StandIns(tmp_path / "ray")
    simulated = RaylessCluster(stand_ins.settings, lambda _step, _text: None)
    simulated._places.append(place := _ReplicaPlace("demo", 0))
    for starting in (
        ready.start_router(tmp_path, 0, []),
        stand_ins._start_autoscaler(),
        console.LocalConsole(tmp_path, "127.0.0.1:1", 1).start(),
        simulated._start_replica(place),
    ):
        with pytest.raises(BootstrapError, match="not waited for"):
            await starting
    assert dict.fromkeys(("router 0", "autoscaler", "console", "replica demo-0"), 300.0) == given


async def test_an_autoscaler_that_ends_shows_how_it_goes(cluster: StandIns) -> None:
    """It may take half a minute, and people take silence for a hang."""
    shown: list[tuple[str, str]] = []
    cluster._progress = lambda step, text: shown.append((step, text))
    cluster.autoscaler = await ChildProcess.start("autoscaler", LIVES, cluster.run_dir / "autoscaler.log")
    await cluster.stop()
    assert [("autoscaler", "stopping"), ("autoscaler", "stopped")] == shown[:2]


async def test_routers_that_come_up_are_counted(cluster: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    cluster._progress = lambda _step, text: shown.append(text)
    router = cluster.settings.router.model_copy(update={"processes": 2})
    cluster.settings = cluster.settings.model_copy(update={"router": router})
    up = RouterProcess(await ChildProcess.start("router", LIVES, cluster.run_dir / "router.log"), "router-a", 1, 1, 0)

    async def at_once(*_: object) -> RouterProcess:
        return up

    monkeypatch.setattr(cluster, "_start_router", at_once)
    await cluster._start_routers(cluster.run_dir / "settings.json")
    assert ["starting 2", "1 of 2 started", "2 of 2 started", "ready"] == shown


async def test_routers_without_links_are_named_with_the_pool(
    cluster: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready, "LINKS_S", 0.2)
    monkeypatch.setattr(ready, "unlinked", lambda _port, _host, wanted: list(wanted))
    process = await ChildProcess.start("router 0", LIVES, cluster.run_dir / "router-0.log")
    cluster.routers = [RouterProcess(process, "router-a", 1, 1, 0)]
    with pytest.raises(BootstrapError, match=r"router 0 .*not linked to all replicas of demo within .*router-0\.log"):
        await cluster._wait_linked()


@pytest.mark.parametrize(("mode", "waits_for"), [("active", 1), ("off", 3)])
async def test_links_are_waited_for_by_the_number_that_an_autoscaler_left_behind(
    cluster: StandIns, monkeypatch: pytest.MonkeyPatch, mode: str, waits_for: int
) -> None:
    """The applications of a killed cluster run on in a Ray of one's own, and Serve keeps their number."""
    asked: list[Mapping[str, int]] = []

    def unlinked(_port: int, _host: str, wanted: Mapping[str, int]) -> list[str]:
        asked.append(wanted)
        return []

    monkeypatch.setattr(ready, "unlinked", unlinked)
    pool = PoolSettings(engine="sim", replicas=3, autoscale={"mode": mode, "max_replicas": 4})
    cluster.settings, cluster.pools = cluster.settings.model_copy(update={"pools": {"demo": pool}}), {"demo": pool}
    process = await ChildProcess.start("router 0", LIVES, cluster.run_dir / "router-0.log")
    cluster.routers = [RouterProcess(process, "router-a", 1, 1, 0)]
    await cluster._wait_linked()
    assert [{"demo": waits_for}] == asked


async def test_routers_without_links_are_quoted(cluster: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "LINKS_S", 2.0)
    monkeypatch.setattr(ready, "unlinked", lambda _port, _host, wanted: list(wanted))
    complains = "print('the queue refused: MISCONF no space left', flush=True); import time; time.sleep(600)"
    process = await ChildProcess.start("router 0", (sys.executable, "-c", complains), cluster.run_dir / "router-0.log")
    await until(lambda: process.worries() != "")
    cluster.routers = [RouterProcess(process, "router-a", 1, 1, 0)]
    with pytest.raises(BootstrapError, match=r"not linked .*its log says:\nthe queue refused: MISCONF no space left"):
        await cluster._wait_linked()


def failure(cluster: StandIns, replica: str, text: str, *, final: bool) -> None:
    base = report_base(str(cluster.run_dir / "settings.json"), "demo", replica)
    StartReport(base).fail(Failure(text, final))


async def test_a_start_that_can_only_fail_again_ends_at_once_and_is_quoted_whole(cluster: StandIns) -> None:
    cluster.serve = Serve(STARTS)  # type: ignore[assignment]
    failure(cluster, "a", "1 validation error for ModelConfig\n  Value error: no `model_type`", final=True)
    with pytest.raises(BootstrapError, match=r"pool demo .*1 validation error .*\n.*no `model_type`; log: .*ray.log"):
        await cluster._serve_pools.ready("demo", POOL)


async def test_a_start_that_failed_once_is_shown_and_its_next_one_counts(cluster: StandIns) -> None:
    said: list[str] = []
    cluster._progress = lambda _step, text: said.append(text)
    cluster.serve = Serve(STARTS, STARTS, RUNS)  # type: ignore[assignment]
    failure(cluster, "a", "RuntimeError: out of memory\n at line 1", final=False)
    StartReport(report_base(str(cluster.run_dir / "settings.json"), "demo", "b")).stage("loading the weights")
    await cluster._serve_pools.ready("demo", POOL)
    assert "0 of 1 replica runs; loading the weights; 1 start failed: RuntimeError: out of memory" == said[0]
    assert "ready" == said[-1]


async def test_serve_that_gave_up_is_explained_by_the_first_failure(cluster: StandIns) -> None:
    cluster.serve = Serve(AppStatus("DEPLOY_FAILED", "The deployment failed to start 3 times", 0, 1))  # type: ignore[assignment]
    failure(cluster, "a", "RuntimeError: out of memory\n at line 1", final=False)
    with pytest.raises(BootstrapError, match=r"RuntimeError: out of memory\n at line 1; log:"):
        await cluster._serve_pools.ready("demo", POOL)


class Redeployed(Serve):
    """Answers after a moment, and remembers what was deployed."""

    def __init__(self) -> None:
        super().__init__()
        self.deployed: list[set[str]] = []

    async def status(self) -> dict[str, AppStatus]:
        await asyncio.sleep(0.01)
        return {}

    async def deploy(self, config: Mapping[str, Any]) -> None:
        await asyncio.sleep(0.01)
        self.deployed.append({app["name"] for app in config["applications"]})


async def test_pools_that_change_together_while_an_autoscaler_starts_do_not_lose_each_other(
    cluster: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    autoscalers = Autoscalers(monkeypatch, HANGS)
    serve = cluster.serve = Redeployed()  # type: ignore[assignment]
    more = cluster.settings.pools["demo"]
    starting = asyncio.create_task(cluster.restart_autoscaler())
    await until(lambda: bool(autoscalers.started))
    await asyncio.gather(*(cluster._redeploy(name, more) for name in ("a", "b", "c")))
    assert {"demo", "a", "b", "c"} == set(cluster.pools)
    assert {f"penstock-{name}" for name in cluster.pools} == serve.deployed[-1]
    await cluster._stop_autoscaler()
    with pytest.raises(BootstrapError, match="autoscaler"):
        await starting
    assert cluster.autoscaler_missing()
    # The try of a pool that does not start leaves the autoscaler of the others.
    again = asyncio.create_task(cluster.restart_autoscaler())
    await until(lambda: len(autoscalers.started) == 2)
    await cluster._redeploy("a", more)
    assert autoscalers.started[1].running
    await cluster._stop_autoscaler()
    with pytest.raises(BootstrapError, match="autoscaler"):
        await again


async def test_a_new_start_of_a_pool_is_not_judged_by_an_earlier_one(cluster: StandIns) -> None:
    cluster.serve = Serve(RUNS)  # type: ignore[assignment]
    failure(cluster, "a", "no such model", final=True)
    cluster._serve_pools.forget_starts("demo")
    await cluster._serve_pools.ready("demo", POOL)


async def test_a_start_does_not_wait_for_pools_that_the_settings_do_not_have(cluster: StandIns) -> None:
    cluster.pools["added"] = cluster.settings.pools["demo"]
    assert ["demo"] == list(cluster._awaited)


ROUTER = """
import json, os, sys, time
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
ports = {"port": int(flags["--port"]), "metrics_port": int(flags["--metrics-port"]), "http_port": 0}
fields = {"router_id": "again", **ports}
partial = flags["--ready-file"] + ".partial"
with open(partial, "w") as file:
    json.dump(fields, file)
os.replace(partial, flags["--ready-file"])
time.sleep(600)
"""


async def test_a_router_that_is_killed_is_replaced_at_its_ports_and_the_others_stay(
    cluster: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ChildProcess.start

    async def instead(
        name: str, command: Sequence[str], log_file: Path, environ: Mapping[str, str] | None = None
    ) -> ChildProcess:
        program = (sys.executable, "-c", ROUTER, *command[3:]) if name == "router 1" else LIVES
        return await start(name, program, log_file, environ)

    monkeypatch.setattr(ChildProcess, "start", instead)
    for number in range(2):
        process = await ChildProcess.start("router", LIVES, cluster.run_dir / f"router-{number}.log")
        cluster.routers.append(RouterProcess(process, f"router-{number}", 50051 + number, 40001 + number, 0))
    stays, killed = cluster.routers
    watching = supervised(cluster)
    killed.process.kill()

    await until(lambda: cluster.routers[1].process.running and cluster.routers[1] is not killed)

    again = cluster.routers[1]
    assert ("again", 50052, 40002) == (again.router_id, again.port, again.metrics_port)
    assert (True, stays, False) == (stays.process.running, cluster.routers[0], watching.done())
    assert cluster.rays[0].running
    await ended(watching)


async def test_a_router_that_ends_fails_a_start_but_no_restart_of_ray(cluster: StandIns) -> None:
    process = await ChildProcess.start("router 0", ENDS, cluster.run_dir / "router-0.log")
    cluster.routers = [RouterProcess(process, "router-a", 1, 1, 0)]
    await process.wait()
    with pytest.raises(BootstrapError, match="router 0"):
        cluster.check()
    cluster._up = True
    cluster.check()


class Started:
    """Puts programs in the place of processes by name, and remembers every process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, programs: Mapping[str, Sequence[str]]) -> None:
        self.processes: list[ChildProcess] = []
        start = ChildProcess.start

        async def instead(
            name: str, command: Sequence[str], log_file: Path, environ: Mapping[str, str] | None = None
        ) -> ChildProcess:
            program = programs.get(name)
            process = await start(name, [*program, *command[3:]] if program else command, log_file, environ)
            self.processes.append(process)
            return process

        monkeypatch.setattr(ChildProcess, "start", instead)

    @property
    def names(self) -> list[str]:
        return sorted(process.name for process in self.processes)

    @property
    def running(self) -> list[str]:
        return [process.name for process in self.processes if process.running]


async def test_a_start_that_failed_leaves_nothing_that_goes_on_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(monkeypatch, {"redis": ENDS, "ray": HANGS})
    flags = {"cluster": {"state_dir": tmp_path}, "pools": {"demo": {"engine": "sim"}}}
    before = asyncio.all_tasks()

    with pytest.raises(BootstrapError, match="redis"):
        await LocalCluster(load_settings(flags=flags, environ={}), lambda _step, _text: None).start()

    assert set() == asyncio.all_tasks() - before
    assert (["ray", "redis"], []) == (started.names, started.running)


async def test_routers_that_came_up_beside_one_that_did_not_are_stopped(
    cluster: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It ends when the first one is up.
    waits = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\ntime.sleep(0.3)"
    first_is_up = cluster.run_dir / "router-0.json"
    started = Started(
        monkeypatch,
        {
            "router 0": (sys.executable, "-c", ROUTER),
            "router 1": (sys.executable, "-c", waits, str(first_is_up)),
        },
    )
    router = cluster.settings.router.model_copy(update={"processes": 2, "metrics_port": 40001})
    cluster.settings = cluster.settings.model_copy(update={"router": router})

    with pytest.raises(BootstrapError, match="router 1"):
        await cluster._start_routers(cluster.run_dir / "settings.json")
    await cluster.stop()

    assert (["router 0", "router 1"], []) == (started.names, started.running)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_state_folder_on_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the output, which people look for elsewhere."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(BootstrapError, match=f"{tmp_path} cannot be used: No space left"), claimed(tmp_path):
            pass
    assert not is_held(tmp_path)


async def test_a_state_folder_that_fills_up_during_a_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins = StandIns(tmp_path)
    monkeypatch.setattr(stand_ins, "_write_settings", full)
    with pytest.raises(BootstrapError, match=f"the state folder {tmp_path} cannot be written: No space left"):
        await stand_ins.start()
