"""Dashboards and alerts: their PromQL parses, names metrics that exist, and finds data in a live cluster."""

from __future__ import annotations

import asyncio
import re
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import yaml

from k8s.render import dashboards
from k8s.render.generated import RELEASE
from penstock.client import AsyncClient, JobItem, Sampling
from penstock.v1 import inference_pb2_grpc
from tests.k8s.alerts import alerts, names
from tests.k8s.charts import of_kind, one, render
from tests.k8s.kubelet.cluster import Kubelet
from tests.k8s.kubelet.prometheus import SCRAPE_S, Prometheus, require, running_prometheus, scrape_targets
from tests.k8s.kubelet.serve import running_autoscalers
from tests.k8s.kubelet.stack import endpoints, key_of, load
from tests.k8s.rules.runtime import metrics_of_autoscalers
from tests.support.stack import collect, stream_request
from tests.support.waiting import TimedOutError, until

# Long enough for two scrapes of a busy machine.
WINDOW = "[1m]"
METRIC = r"\b(?:penstock|gen_ai_client|gen_ai_server)_"
in_package = pytest.mark.asyncio(loop_scope="package")


def concrete(query: str) -> str:
    """Replace Grafana's variables."""
    return query.replace("[$__rate_interval]", WINDOW).replace("$pool", ".*").replace("$namespace", ".*")


def all_names() -> set[str]:
    """Every metric that a dashboard, an alert or a horizontal autoscaler names."""
    texts = [query for _, _, query in dashboards.queries()] + [str(rule["expr"]) for rule in alerts()]
    return {name for text in texts for name in names(text)} | metrics_of_autoscalers(render("everything"))


def check_rules(rules: list[dict[str, object]], folder: Path) -> str:
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}), encoding="utf-8")
    done = subprocess.run(
        [require("promtool"), "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    return done.stderr if done.returncode else ""


def test_every_query_and_rule_parses(tmp_path: Path) -> None:
    recorded = [
        {"record": f"panel:{number}", "expr": concrete(query)}
        for number, (_, _, query) in enumerate(dashboards.queries())
    ]
    assert not check_rules([*alerts(), *recorded], tmp_path)
    assert "could not parse" in check_rules([{"record": "panel:x", "expr": "sum by (pool (x)"}], tmp_path)


def shipped_rules(*more: str) -> list[dict[str, Any]]:
    groups = one(render("everything", *more), "PrometheusRule")["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.slow
def test_the_chart_ships_rules_and_dashboards_unchanged() -> None:
    """Prometheus' own templates in the texts must survive Helm's."""
    own = ({**rule, "labels": {**rule["labels"], "namespace": RELEASE}} for rule in alerts())
    assert [{**rule, "expr": ""} for rule in own] == [{**rule, "expr": ""} for rule in shipped_rules()]
    objects = render("everything")
    boards = [each for each in of_kind(objects, "ConfigMap") if "-dashboard-" in each["metadata"]["name"]]
    shown = {yaml.safe_load(text)["uid"] for each in boards for text in each["data"].values()}
    assert {f"penstock-{name}" for name in dashboards.BOARDS} == shown


def test_alerts_are_about_the_namespace_of_their_release(tmp_path: Path) -> None:
    """One Prometheus may have several releases, and a healthy one must not hide that another is down."""
    rules = shipped_rules("--namespace", "a-1")
    for rule, written in zip(rules, alerts(), strict=True):
        assert rule["expr"].count('{namespace="a-1"') == len(re.findall(r"\bpenstock_", written["expr"])), rule["alert"]
        assert rule["labels"]["namespace"] == "a-1"
        without = re.sub(r'\{namespace="a-1"\}', "", rule["expr"]).replace('{namespace="a-1",', "{")
        assert " ".join(written["expr"].split()) == " ".join(without.split())
    assert not check_rules(rules, tmp_path)
    assert 'absent(penstock_router_open_calls{namespace="a-1"})' == rules[0]["expr"]


def test_panels_are_about_the_chosen_namespaces() -> None:
    for board, panel, query in dashboards.queries():
        assert query.count('{namespace=~"$namespace"') == len(re.findall(METRIC, query)), (board, panel)


def exported(kubelet: Kubelet) -> set[str]:
    found = set()
    for target in scrape_targets(kubelet):
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=5) as reply:
            found |= names(reply.read().decode())
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def busy(kubelet: Kubelet) -> AsyncIterator[Kubelet]:
    """The stack under load, with autoscalers."""
    async with running_autoscalers(kubelet), load(kubelet, streams=12):
        yield kubelet


@in_package
async def test_every_name_is_a_metric_that_exists(busy: Kubelet) -> None:
    without: set[str] = set()

    async def all_there() -> bool:
        there = await asyncio.to_thread(exported, busy)
        # A histogram without observations has no buckets yet.
        without.clear()
        without.update({name.removesuffix("_bucket") for name in all_names()} - there)
        return not without

    # Some come with a leader's first decisions, and with a step model that it trusts.
    try:
        await until(all_there, 60)
    except TimedOutError as error:
        raise TimedOutError(f"no such metrics: {sorted(without)}") from error
    there = await asyncio.to_thread(exported, busy)
    assert {"penstock_router_open_cals"} == names("sum(penstock_router_open_cals)") - there


async def make_news(kubelet: Kubelet) -> None:
    """Do what only seldom happens: a refused call, and a job."""
    target, key = endpoints(kubelet)()[0], key_of(kubelet)
    async with grpc.aio.insecure_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await collect(inference_pb2_grpc.InferenceServiceStub(channel).StreamGenerate(stream_request()))
    async with AsyncClient(target, api_key=key, allow_plaintext_key=True) as client:
        job = await client.submit_job("demo", [JobItem("a", "What is Penstock?", Sampling(max_tokens=4))])
        async for _ in client.watch_job(job.job_id):
            pass


async def missing(prometheus: Prometheus, queries: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return the panels whose query finds nothing."""
    found = await asyncio.gather(*(prometheus.query(concrete(query)) for _, _, query in queries))
    return [panel for panel, values in zip(queries, found, strict=True) if not values]


@in_package
async def test_every_panel_finds_data(busy: Kubelet, tmp_path: Path) -> None:
    """Prometheus scrapes what the rendered monitors select, and evaluates the rendered rules."""
    # A replica that is busy all the time changes nothing.
    without = [panel for panel in dashboards.queries() if "control_changes" not in panel[2]]

    async def all_there() -> bool:
        # One that found data is done: the panels need not be full at the same moment.
        without[:] = await missing(prometheus, without)
        if without:
            # Rates need two scrapes.
            await asyncio.gather(make_news(busy), asyncio.sleep(2 * SCRAPE_S))
        return not without

    async with running_prometheus(busy, tmp_path) as prometheus:
        try:
            await until(all_there, 60)
        except TimedOutError as error:
            raise TimedOutError("no data: " + "\n".join(map(" / ".join, without))) from error
        groups = (await prometheus.get("rules"))["groups"]
        assert {"ok"} == {rule["health"] for group in groups for rule in group["rules"]}
        assert [] == await prometheus.query("penstock_router_open_cals")
