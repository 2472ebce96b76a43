"""What can be said of images without building them. Building and running them is the hosted workflow's part."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

from k8s.render.pins import ROOT, normal, pins
from tests.k8s.charts import one, render
from tests.k8s.view import pods

FILES = sorted((ROOT / "k8s" / "images").glob("*.Dockerfile"))
WORKFLOW = ROOT / ".github" / "workflows" / "images.yaml"


def instructions(file: Path) -> list[str]:
    lines = re.sub(r"\\\n\s*", "", file.read_text(encoding="utf-8")).splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_image_is_pinned_and_runs_as_nobody_special(file: Path) -> None:
    lines = instructions(file)
    stages = {line.split(" AS ")[1] for line in lines if line.startswith("FROM") and " AS " in line}
    arguments = dict(line.removeprefix("ARG ").split("=", 1) for line in lines if line.startswith("ARG "))
    assert arguments
    assert all(re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", value) for value in arguments.values())
    for base in (line.split()[1] for line in lines if line.startswith("FROM")):
        assert base in stages or base.strip("${}") in arguments
    last = lines[[i for i, line in enumerate(lines) if line.startswith("FROM")][-1] :]
    (user,) = [line for line in last if line.startswith("USER")]
    assert "USER 10001:10001" == user
    assert {10001} == {
        pod.spec["securityContext"]["runAsUser"] for pod in pods(render()) if "redis" not in pod.component
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_an_image_copies_is_there_and_sent(file: Path) -> None:
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    for line in instructions(file):
        if line.startswith("COPY") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists()
                assert f"!{source.split('/')[0]}\n" in sent


BLOCK = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

ABSENT = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Absent())
import router.__main__, cluster.cli.main, router.commands.generate, penstock.client, uvloop
"""


@pytest.mark.slow
def test_the_router_images_pins_are_enough_and_slim() -> None:
    """Routers and the command line start where nothing but these pins is installed, and they bring no PyTorch."""
    there = pins("router.txt").keys() | {"penstock-llm", "penstock-client"}
    absent = {
        name
        for name, owners in packages_distributions().items()
        if not {normal(owner) for owner in owners} & there and name not in ("cluster", "router", "penstock")
    }
    assert {"ray", "torch", "vllm", "numpy"} <= absent
    subprocess.run([sys.executable, "-c", BLOCK, ",".join(absent)], cwd=ROOT, check=True)
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([sys.executable, "-c", BLOCK, "redis"], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)


def test_the_workflow_builds_every_image_and_names_real_files() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    built = {item["file"] for item in jobs["build"]["strategy"]["matrix"]["include"]}
    assert {f"k8s/images/{file.name}" for file in FILES} == built
    for path in re.findall(r"\bk8s/[\w./-]+\w", text):
        assert (ROOT / path).exists(), path
    assert not re.findall(r"uses: (?!\./)\S+@(?!v\d)\S+", text)


def test_the_cuda_image_has_the_cuda_of_its_pytorch_and_a_compiler() -> None:
    """PyTorch 2.13 has wheels of CUDA 13.0 alone, and vLLM compiles kernels when an engine starts."""
    lines = instructions(ROOT / "k8s" / "images" / "replica-cuda.Dockerfile")
    (base,) = [line for line in lines if line.startswith("ARG CUDA_IMAGE=")]
    (backend,) = re.findall(r"--torch-backend=cu(\d\d)(\d)", " ".join(lines))
    assert re.search(rf"cuda:{'.'.join(backend)}\.\d+-devel-", base)
    last = " ".join(lines)
    assert "CUDA_HOME=/usr/local/cuda " in last
    assert ":/usr/local/cuda/bin:" in last


def test_images_are_pushed_under_the_tag_and_with_the_digests_that_the_chart_asks_for() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    steps = jobs["build"]["steps"]
    (push,) = [step for step in steps if step.get("id") == "push"]
    assert push["with"]["tags"].endswith(":${{ env.VERSION }}")
    assert any('VERSION=${GITHUB_REF_NAME#v}"' in step.get("run", "") for step in steps)
    publish = next(step["run"] for step in jobs["chart"]["steps"] if "helm package" in step.get("run", ""))
    # As `helm template` looks them up: by repository and tag.
    assert '.images.digests[\\"$REGISTRY/$name:${GITHUB_REF_NAME#v}\\"]' in publish


def test_the_workflow_signs_what_it_may_and_builds_what_fits() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    for job in ("build", "chart"):
        steps = jobs[job]["steps"]
        (sign,) = [at for at, step in enumerate(steps) if "cosign sign" in step.get("run", "")]
        # Cosign reads the login of Docker, not Helm's.
        assert any("docker/login-action" in step.get("uses", "") for step in steps[:sign]), job
    steps = jobs["build"]["steps"]
    build = next(at for at, step in enumerate(steps) if step.get("name") == "Build")
    assert "matrix.name != 'penstock-replica-cuda'" in steps[build]["with"]["cache-to"]
    assert any("rm -rf" in step.get("run", "") and "cuda" in step["if"] for step in steps[:build])


def test_the_charts_repositories_are_those_that_the_workflow_pushes() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    images = {container["image"] for pod in pods(render()) for container in pod.containers()}
    for image in (image for image in images if image.startswith("ghcr.io/")):
        assert f"name: {image.split('/')[-1].split(':')[0]}" in text
    assert one(render(), "Deployment", "-router")
