"""Debian's Prometheus, scraping pods as the rendered monitors say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.render.generated import RELEASE
from tests.k8s.charts import of_kind, one
from tests.k8s.kubelet.cluster import Kubelet
from tests.support.ports import free_port
from tests.support.waiting import until

SCRAPE_S = 0.5


def require(name: str) -> str:
    """Find prometheus or promtool; without it the test is skipped, but fails where CI is true."""
    if path := shutil.which(name):
        return path
    reason = f"no {name} on this machine: dashboards and alerts are NOT tested against it"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


class Prometheus:
    """Answers queries."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def query(self, promql: str) -> list[float]:
        """Return the values of an instant query; not a number counts as none."""
        reply = await self.get("query", query=promql)
        found = [float(sample["value"][1]) for sample in reply["result"]]
        return [value for value in found if not math.isnan(value)]

    async def get(self, path: str, **parameters: str) -> Any:
        """Call its API."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        return json.loads(await asyncio.to_thread(_read, url))["data"]

    async def ready(self) -> bool:
        """Say whether it answers."""
        try:
            await asyncio.to_thread(_read, f"http://{self._address}/-/ready")
        except OSError:
            return False
        return True


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as reply:  # noqa: S310 - the one started here
        text: bytes = reply.read()
    return text


def scrape_targets(kubelet: Kubelet) -> list[str]:
    """Return what the Prometheus operator would scrape: monitors, their selectors, ports by name."""
    found = []
    for monitor in of_kind(kubelet.objects, "PodMonitor"):
        labels = monitor["spec"]["selector"]["matchLabels"]
        for end in monitor["spec"]["podMetricsEndpoints"]:
            # There is no Ray behind the port that Ray would open.
            if end["port"] != "metrics":
                found += [f"{pod.ip}:{pod.port(end['port'])}" for pod in kubelet.behind(labels)]
    for monitor in of_kind(kubelet.objects, "ServiceMonitor"):
        labels = monitor["spec"]["selector"]["matchLabels"]
        for service in of_kind(kubelet.objects, "Service"):
            if labels.items() <= service["metadata"]["labels"].items():
                ports = {port["name"]: port["targetPort"] for port in service["spec"]["ports"]}
                for end in monitor["spec"]["endpoints"]:
                    if (target := ports.get(end["port"])) is not None:
                        found += [f"{pod.ip}:{pod.port(target)}" for pod in kubelet.behind(service["spec"]["selector"])]
    return found


@contextlib.asynccontextmanager
async def running_prometheus(kubelet: Kubelet, folder: Path) -> AsyncIterator[Prometheus]:
    """Run it with the rendered alert rules."""
    binary = require("prometheus")
    rules = folder / "rules.yaml"
    rules.write_text(yaml.safe_dump(one(kubelet.objects, "PrometheusRule")["spec"]), encoding="utf-8")
    # As the operator labels what a PodMonitor selects.
    targets = {"targets": scrape_targets(kubelet), "labels": {"namespace": RELEASE}}
    config = {
        "global": {"scrape_interval": f"{int(SCRAPE_S * 1000)}ms", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "penstock", "static_configs": [targets]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        binary,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220
    try:
        prometheus = Prometheus(address)
        await until(prometheus.ready)
        yield prometheus
    finally:
        process.kill()
        process.wait()
