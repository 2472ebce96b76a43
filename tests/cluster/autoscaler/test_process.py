"""The autoscaler's process and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

import cluster
from cluster.autoscaler.actuator import Actual, PatientActuator
from cluster.autoscaler.autoscaler import Autoscaler, AutoscalerStores
from cluster.errors import ActuatorError, SettingsError
from cluster.settings import AutoscalerSettings, Settings
from cluster.trust.secret import ClusterSecret
from tests.cluster.queue.servers import Server
from tests.support.collector import attributes, running_collector
from tests.support.halt import answered_in_halt
from tests.support.waiting import until


@pytest.fixture
def silent_dashboard() -> Iterator[tuple[str, threading.Event]]:
    """Takes connections and says nothing; the event tells that somebody asked."""
    asked, open_sockets = threading.Event(), []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _peer = server.accept()
                except OSError:
                    return
                open_sockets.append(connection)
                asked.set()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", asked
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in open_sockets:
            connection.close()


async def test_it_ends_soon_although_ray_does_not_answer(
    redis_servers: dict[str, Server], silent_dashboard: tuple[str, threading.Event], tmp_path: Path
) -> None:
    """Kubernetes gives it thirty seconds; a call on its way used to take as long."""
    address, asked = silent_dashboard
    settings = {
        "cluster": {"state_dir": str(tmp_path), "ray_address": address},
        "redis": {"url": redis_servers["redis-7.0"].url},
        "autoscaler": {"port": 0, "tick_s": 0.3, "lease_s": 1.5},
        "pools": {"ended": {"model": "demo", "engine": "sim", "autoscale": {"mode": "active", "max_replicas": 2}}},
    }
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cluster.cli.main", "autoscaler", "--settings-json", tmp_path / "settings.json"),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        await until(asked.is_set, 30)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings = Settings.model_validate({"autoscaler": {"port": port}})
        made = Autoscaler(settings, ClusterSecret(b"0" * 32), AutoscalerStores(Mock(), Mock()), Mock())
        with pytest.raises(SettingsError, match=f"autoscaler.port: {port} on 127.0.0.1 .*: Address already in use"):
            await made.start()


async def test_its_metrics_are_pushed_until_its_end() -> None:
    async with running_collector("http") as collector:
        telemetry = {"otlp_endpoint": collector.endpoint, "otlp_protocol": "http", "metrics_s": 3600}
        settings = Settings.model_validate({"autoscaler": {"port": 0}, "telemetry": telemetry})
        made = Autoscaler(settings, ClusterSecret(b"0" * 32), AutoscalerStores(Mock(), Mock()), Mock())
        await made.start()
        await made.stop()
    [push] = collector.pushes
    resource = {
        "service.name": "penstock-autoscaler",
        "service.version": cluster.__version__,
        "service.instance.id": made.holder,
    }
    assert resource.items() <= attributes(push.resource_metrics[0].resource).items()


class Silent:
    """Platform that answers when it is told to."""

    def __init__(self) -> None:
        self.looks = 0
        self.answer: asyncio.Future[Actual] = asyncio.get_running_loop().create_future()

    async def look(self, _pool: str) -> Actual:
        self.looks += 1
        return await asyncio.shield(self.answer)

    async def scale(self, _pool: str, _replicas: int) -> None:
        return None


async def test_looks_at_a_platform_that_does_not_answer_do_not_pile_up() -> None:
    """Each would hold a thread of the process, which other pools need."""
    silent = Silent()
    platform = PatientActuator("demo", silent, 0.01)
    for _ in range(3):
        with pytest.raises(ActuatorError, match="no answer within"):
            await platform.look()
    assert 1 == silent.looks
    platform._patience_s = 60.0
    silent.answer.set_result(Actual(3, 2))
    assert Actual(3, 2) == await platform.look()
    assert Actual(3, 2) == await platform.look()
    assert 2 == silent.looks
    await platform.close()


async def test_a_look_after_an_order_does_not_have_the_answer_of_one_before_it() -> None:
    silent = Silent()
    platform = PatientActuator("demo", silent, 0.01)
    for _ in range(2):
        with pytest.raises(ActuatorError, match="no answer within"):
            await platform.look()
        await platform.scale(4)
    assert 2 == silent.looks
    await platform.close()


async def test_an_answer_of_the_platform_that_came_while_this_process_stood_still_is_in_time() -> None:
    platform = PatientActuator("demo", Mock(look=lambda _pool: answered_in_halt(Actual(3, 2), 0.6)), 0.2)
    assert Actual(3, 2) == await platform.look()
    await platform.close()


@pytest.mark.parametrize("turns", range(6))
async def test_an_end_that_comes_with_the_platforms_answer_is_heard(turns: int) -> None:
    platform = PatientActuator("demo", Mock(), AutoscalerSettings().patience_s)
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask() -> None:
        await answer

    async def look_after() -> None:
        await platform._in_time(ask())
        await asyncio.sleep(60)

    task = asyncio.create_task(look_after())
    await asyncio.sleep(0.01)
    answer.set_result(None)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=30.0)
    ended = task.cancelled()
    task.cancel()
    await asyncio.wait([task])
    assert ended


@pytest.mark.slow
@pytest.mark.parametrize("command", [["cluster.cli.main", "autoscaler"], ["router"]])
async def test_a_settings_file_that_cannot_be_read_is_named_and_shows_no_password(
    command: list[str], tmp_path: Path
) -> None:
    async def said(file: Path) -> str:
        words = (sys.executable, "-m", *command, "--settings-json", file)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)
        _out, err = await process.communicate()
        assert 2 == process.returncode, err
        return err.decode()

    missing, broken = tmp_path / "none.json", tmp_path / "broken.json"
    assert (await said(missing)).endswith(f": settings file {missing} cannot be read: No such file or directory\n")
    broken.write_text('{"redis": {"url": "redis://:hunter2@h:1"}')
    text = await said(broken)
    assert "Invalid JSON" in text
    assert "hunter2" not in text
