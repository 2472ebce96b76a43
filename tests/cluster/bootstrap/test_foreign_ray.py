"""A cluster on a Ray that somebody else runs: it asks before it deploys, and leaves nothing behind. The dashboard is a
stand-in that answers as Ray's does.
"""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cluster.bootstrap.local import LocalCluster
from cluster.bootstrap.process import ChildProcess
from cluster.errors import BootstrapError
from cluster.ray_serve.client import ServeApi
from cluster.ray_serve.pools import ServePools
from cluster.settings import load_settings


class Dashboard:
    """Runs what it is told to at once; what is taken off goes with the next look but one."""

    def __init__(self) -> None:
        self.apps: dict[str, Any] = {}
        self.configs: list[dict[str, Any]] = []
        self.leaving: dict[str, int] = {}
        self.nodes: Any = [
            {"state": "ALIVE", "resources_total": {"CPU": 8.0, "GPU": 4.0}},
            {"state": "ALIVE", "resources_total": {"CPU": 8.0}},
            {"state": "DEAD", "resources_total": {"GPU": 8.0}},
        ]

    def take(self, config: dict[str, Any]) -> None:
        self.configs.append(config)
        wanted = {app["name"]: app for app in config["applications"]}
        self.leaving = {name: 2 for name in self.apps if name not in wanted}
        self.apps.update(wanted)

    def look(self) -> dict[str, Any]:
        shown = {name: {"status": "RUNNING", "deployments": {}} for name in self.apps}
        for name in list(self.leaving):
            self.leaving[name] -= 1
            if self.leaving[name] <= 0:
                del self.leaving[name], self.apps[name]
        return {"applications": shown}


@pytest.fixture
def dashboard() -> Iterator[tuple[Dashboard, str]]:
    state = Dashboard()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nodes = {"data": {"result": {"result": state.nodes}}}
            self._answer(nodes if self.path == "/api/v0/nodes" else state.look())

        def do_PUT(self) -> None:
            state.take(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer({})

        def _answer(self, body: dict[str, Any]) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield state, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


class Deployed(ServePools):
    async def ready(self, name: str, wanted: int) -> None: ...


class Deploying(LocalCluster):
    """A cluster of which only Ray's part is started."""

    @property
    def _serve_pools(self) -> ServePools:
        assert self.serve is not None
        return Deployed(self.serve, self._replicas_path, self._gpus, self._progress, self.check)


def cluster_on(address: str, folder: Path) -> Deploying:
    pools = {"demo": {"engine": "vllm", "tensor_parallel_size": 4}, "other": {"engine": "sim"}}
    flags = {"cluster": {"state_dir": folder, "ray_address": address}, "pools": pools}
    made = Deploying(load_settings(flags=flags, environ={}), lambda _step, _text: None)
    made.run_dir.mkdir(parents=True)
    return made


@pytest.mark.slow
async def test_replicas_ask_for_the_gpus_that_there_are(dashboard: tuple[Dashboard, str], tmp_path: Path) -> None:
    state, address = dashboard
    cluster = cluster_on(address, tmp_path)
    await cluster._start_ray()
    await cluster._deploy()

    options = {app["name"]: app["deployments"][0]["ray_actor_options"] for app in state.configs[0]["applications"]}
    assert [{"num_cpus": 1, "num_gpus": 4}, {"num_cpus": 1}] == list(options.values())
    await cluster.stop()


@pytest.mark.slow
async def test_a_cluster_that_stops_takes_its_applications_with_it(
    dashboard: tuple[Dashboard, str], tmp_path: Path
) -> None:
    state, address = dashboard
    cluster = cluster_on(address, tmp_path)
    await cluster._start_ray()
    await cluster._deploy()
    assert 2 == len(state.apps)
    await cluster.stop()
    await cluster.stop()

    assert {} == state.apps
    assert [2, 0] == [len(config["applications"]) for config in state.configs]


@pytest.mark.slow
async def test_applications_of_others_are_left_alone(dashboard: tuple[Dashboard, str], tmp_path: Path) -> None:
    state, address = dashboard
    state.apps["theirs"] = {}
    cluster = cluster_on(address, tmp_path)
    with pytest.raises(BootstrapError, match=r"runs applications of others.*: theirs;"):
        await cluster._start_ray()
    await cluster.stop()

    assert [] == state.configs
    assert {"theirs"} == state.apps.keys()


@pytest.mark.slow
async def test_a_dashboard_that_lists_no_nodes_is_named(dashboard: tuple[Dashboard, str], tmp_path: Path) -> None:
    state, address = dashboard
    state.nodes = None
    cluster = cluster_on(address, tmp_path)
    with pytest.raises(BootstrapError, match="its dashboard lists no nodes"):
        await cluster._start_ray()
    await cluster.stop()


@pytest.mark.slow
async def test_the_dashboard_is_not_asked_through_the_proxy_of_the_environment(
    dashboard: tuple[Dashboard, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = dashboard
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)
    assert {} == await ServeApi(address, None).status()


@pytest.mark.slow
async def test_an_own_ray_that_has_ended_is_not_asked_to_let_go(
    dashboard: tuple[Dashboard, str], tmp_path: Path
) -> None:
    state, address = dashboard
    cluster = cluster_on("", tmp_path)
    cluster.ray_host = await ChildProcess.start("ray", (sys.executable, "-c", "input()"), tmp_path / "ray.log")
    cluster.serve, cluster._gpus = ServeApi(address, None), 0
    await cluster._deploy()
    await cluster.stop()
    await cluster.stop()

    assert 1 == len(state.configs)
