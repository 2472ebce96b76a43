"""Serve's API as the host of a local Ray offers it: the client cannot tell it from Ray's dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import BootstrapError
from cluster.ray_serve.client import ServeApi
from cluster.ray_serve.host import serving

TOKEN = "right"


class Control:
    """Serve's controller: does at once what it is told, and refuses what it can't."""

    def __init__(self) -> None:
        self.apps: dict[str, Any] = {}

    def details(self) -> dict[str, Any]:
        return {"applications": self.apps}

    def deploy(self, config: dict[str, Any]) -> None:
        if "applications" not in config:
            raise ValueError("applications: Field required")
        self.apps = {
            app["name"]: {"status": "RUNNING", "deployments": {"replica": {"target_num_replicas": 1}}}
            for app in config["applications"]
        }

    def scale(self, application: str, deployment: str, replicas: int) -> None:
        if application not in self.apps:
            raise RuntimeError(f"Application {application} not found")
        self.apps[application]["deployments"][deployment]["target_num_replicas"] = replicas


@pytest.fixture
def control() -> Control:
    return Control()


@pytest.fixture
def address(control: Control) -> Iterator[str]:
    with serving(control, TOKEN) as address:
        yield address


def client(address: str, folder: Path, token: str = TOKEN) -> ServeApi:
    (folder / "token").write_text(token, encoding="ascii")
    return ServeApi(address, folder / "token")


async def test_applications_are_deployed_listed_and_scaled(address: str, tmp_path: Path) -> None:
    serve = client(address, tmp_path)
    assert {} == await serve.status()
    await serve.deploy({"applications": [{"name": "penstock-a"}, {"name": "penstock-b"}]})
    await serve.scale("b", 3)
    found = await serve.status()
    assert {"penstock-a": 1, "penstock-b": 3} == {name: app.target for name, app in found.items()}
    assert {"RUNNING"} == {app.status for app in found.values()}


async def test_what_serve_refuses_is_told(address: str, tmp_path: Path) -> None:
    serve = client(address, tmp_path)
    with pytest.raises(BootstrapError, match=r"400: .*applications: Field required"):
        await serve.deploy({})
    with pytest.raises(BootstrapError, match=r"503: .*Application penstock-gone not found"):
        await serve.scale("gone", 1)
    with pytest.raises(BootstrapError, match=r"404: .*there is no /api/v0/nodes"):
        await serve.gpus()


@pytest.mark.parametrize("token", ["wrong", ""])
async def test_nobody_deploys_without_the_token(address: str, control: Control, tmp_path: Path, token: str) -> None:
    with pytest.raises(BootstrapError, match=r"401: .*bearer token is missing or wrong"):
        await client(address, tmp_path, token).deploy({"applications": [{"name": "theirs"}]})
    assert {} == control.apps
