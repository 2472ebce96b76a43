"""Values that a plan writes: Helm renders a whole cluster from them, and nothing beside it."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.main import main
from k8s.render.binaries import run as helm
from k8s.render.generated import CHART, RELEASE
from loadtest.plan.goals.chart import GUESS, values_of
from loadtest.plan.goals.settings import pool_of, write
from loadtest.plan.option import Layout
from loadtest.plan.search import Candidate
from tests.k8s.charts import Object, one, parse
from tests.loadtest.plan.goals.test_goals import ENGINE, PROMISE, run

HUB = "Qwen/Qwen3-32B"
H100 = replace(ENGINE, gpu="h100", layout=Layout(pipeline=2))


def written(
    tmp_path: Path, model: str = HUB, gpu: str = "h100", cold_start_s: float | None = None
) -> tuple[str, list[Object]]:
    """Write the values of a plan. Return their text, and what the chart makes of them alone."""
    pool = pool_of(Candidate(replace(H100, gpu=gpu), run(), 3), PROMISE, model, cold_start_s)
    values = write(tmp_path, model, pool, gpu)[1]
    secrets = "--set=secrets.generate=true,secrets.generateOffline=true"
    return values.read_text(), parse(
        helm("helm", "template", RELEASE, str(CHART), "--namespace", RELEASE, f"--values={values}", secrets)
    )


def worker_groups(objects: list[Object]) -> list[dict[str, Any]]:
    groups = one(objects, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert isinstance(groups, list)
    return groups


def container(group: dict[str, Any]) -> dict[str, Any]:
    found = group["template"]["spec"]["containers"][0]
    assert isinstance(found, dict)
    return found


def test_the_planned_pool_is_the_only_one(tmp_path: Path) -> None:
    """The chart's own pool would be a second model on CPUs, which nobody planned."""
    _, objects = written(tmp_path)
    (group,) = worker_groups(objects)
    assert "qwen3-32b" == group["groupName"]
    settings = tomllib.loads(one(objects, "ConfigMap", "-settings")["data"]["settings.toml"])
    assert ["qwen3-32b"] == list(settings["pools"])


def test_pods_have_cuda_shared_memory_and_a_way_to_the_model(tmp_path: Path) -> None:
    _, objects = written(tmp_path)
    (group,) = worker_groups(objects)
    assert "penstock-replica-cuda" in container(group)["image"]
    assert ("2", "128Gi") == tuple(container(group)["resources"]["limits"][key] for key in ("nvidia.com/gpu", "memory"))
    volumes = {each["name"]: each for each in group["template"]["spec"]["volumes"]}
    assert ["16Gi"] == [each["emptyDir"]["sizeLimit"] for each in volumes.values() if "Memory" in str(each)]
    assert values_of("x", pool_of(Candidate(H100, run(), 1), PROMISE, HUB), "h100")["networkPolicy"]["modelSources"]
    assert "::/0" in str(one(objects, "NetworkPolicy", "-worker"))


def test_a_pool_that_follows_its_load_has_an_autoscaler_and_no_idle_pods(tmp_path: Path) -> None:
    """A pod per planned replica that always stays would keep the GPUs that the autoscaler gives back."""
    _, objects = written(tmp_path, cold_start_s=120.0)
    (group,) = worker_groups(objects)
    assert (2, 12) == (group["minReplicas"], group["maxReplicas"])
    assert one(objects, "Deployment", "-autoscaler")
    _, still = written(tmp_path)
    assert (6, 6) == tuple(worker_groups(still)[0][key] for key in ("minReplicas", "maxReplicas"))


def test_amd_accelerators_are_asked_for_by_their_name(tmp_path: Path) -> None:
    text, objects = written(tmp_path, gpu="mi300x")
    (group,) = worker_groups(objects)
    limits = container(group)["resources"]["limits"]
    assert ("2", True) == (limits["amd.com/gpu"], "nvidia.com/gpu" not in limits)
    assert "Nobody publishes this image" in text
    assert "penstock-replica-rocm" in container(group)["image"]


def test_what_is_guessed_is_said_where_it_stands(tmp_path: Path) -> None:
    text, _ = written(tmp_path)
    lines = [line.strip() for line in text.splitlines()]
    assert f"# {GUESS}: fit them to your servers." == lines[lines.index("resources:") - 1]
    assert "4 CPU cores and 64 GiB of memory per GPU are a guess" in GUESS


def test_a_folder_is_no_download(tmp_path: Path) -> None:
    pool = {**pool_of(Candidate(H100, run(), 1), PROMISE, HUB), "model": "/models/cache/large"}
    assert "networkPolicy" not in values_of("large", pool, "h100")


def test_a_short_name_is_refused_before_a_plan_is_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["plan", "--model", "qwen3-32b", "--rate", "5", "--no-store", "--apply", str(tmp_path / "out")]
    assert 2 == main(words)
    said = capsys.readouterr()
    assert "'qwen3-32b' is a short name" in said.err
    assert "" == said.out
    assert "replicas" not in said.err


@pytest.mark.slow
def test_a_plan_that_cannot_be_written_is_still_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["plan", "--model", HUB, "--rate", "5", "--slo-ttft", "0.001", "--no-store", "--apply", str(tmp_path)]
    assert 2 == main(words)
    said = capsys.readouterr()
    assert "Infeasible" in said.out
    assert "a prompt of" in said.out
    assert "nothing keeps this SLO, so there is nothing to write" in " ".join(said.err.split())
