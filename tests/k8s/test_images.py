"""What can be said of images without building them. `make images-check` carries out their instructions and starts them;
with Docker itself that is the hosted workflow's part.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from k8s.render.pins import ROOT, normal, pins
from tests.images.build import context
from tests.images.dockerfile import Dockerfile, DockerfileError, Stage, command_of, read
from tests.k8s.charts import one, render
from tests.k8s.view import pods

FILES = sorted((ROOT / "k8s" / "images").glob("*.Dockerfile"))
WORKFLOW = ROOT / ".github" / "workflows" / "images.yaml"


RECIPE = "replica-rocm.Dockerfile"
"""The one that the project does not build: whoever does names a base image, and its digest."""
SYSTEM = ("/usr", "/bin", "/etc", "/var/lib/apt/lists", "/home", "/tmp", "/opt/rocm")  # noqa: S108 - of images
"""Folders of base images."""


def instructions(file: Path) -> list[str]:
    return [f"{each.name} {each.text}" for stage in read(file).stages for each in stage.instructions]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_image_is_pinned_and_runs_as_nobody_special(file: Path) -> None:
    parsed = read(file)
    assert parsed.arguments
    pinned = r":[\w.-]+@sha256:[0-9a-f]{64}$" if file.name != RECIPE else r":[\w.-]+$"
    assert all(re.search(pinned, value) for value in parsed.arguments.values())
    names = {stage.name for stage in parsed.stages if stage.name}
    assert all(stage.base in names or stage.base in parsed.arguments.values() for stage in parsed.stages)
    (user,) = [each.text for each in parsed.stages[-1].instructions if each.name == "USER"]
    assert "10001:10001" == user
    assert {10001} == {
        pod.spec["securityContext"]["runAsUser"] for pod in pods(render()) if "redis" not in pod.component
    }
    assert command_of(parsed.stages[-1])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_an_image_copies_is_there_and_sent(file: Path) -> None:
    sources = [
        source for stage in read(file).stages for copy in stage.copies() if not copy.stage for source in copy.sources
    ]
    assert {"cluster", "proto", "pyproject.toml"} <= set(sources)
    assert all(context(source).exists() for source in sources)
    with pytest.raises(FileNotFoundError, match="keeps it back"):
        context("tests")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_modules_are_compiled_when_the_image_is_built(file: Path) -> None:
    """Nobody can write them later, so every process of Ray and of an engine would compile its own at each start."""
    installs = [each.text.split("&&") for each in read(file).runs() if "uv pip install" in each.text]
    steps = [step for steps in installs for step in steps if "uv pip install" in step]
    assert all("--compile-bytecode" in step for step in steps)
    # pip compiles by itself.
    assert steps or file.name == "router.Dockerfile"


def made(file: Dockerfile, stage: Stage | None) -> set[str]:
    """Return the folders that a stage makes or copies, those of the stage below it too."""
    if stage is None:
        return set()
    runs = [each.text for each in stage.instructions if each.name == "RUN"]
    return {
        *made(file, file.stage(stage.base)),
        *(each.text for each in stage.instructions if each.name == "WORKDIR"),
        *(path for text in runs for path in re.findall(r"(?:-m venv|--outdir) (/\S+)", text)),
        *(copy.to for copy in stage.copies()),
    }


@pytest.mark.parametrize("path", FILES, ids=lambda file: file.name)
def test_every_path_that_a_step_names_is_made_before(path: Path) -> None:
    file, seen = read(path), 0
    for stage in file.stages:
        texts = [(each.text, made(file, stage)) for each in stage.instructions if each.name in ("RUN", "ENV")]
        for copy in stage.copies():
            texts += [(source, made(file, file.stage(copy.stage))) for source in copy.sources if copy.stage]
        for text, there in texts:
            for named in re.findall(r"(?<![\w:/.])/[\w.-]+(?:/[\w.-]+)*", text):
                seen += 1
                assert any(named == root or named.startswith(f"{root}/") for root in (*SYSTEM, *there)), named
    assert seen > 5


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("FROM a\nADD x /y", "ADD is not one of"),
        ("RUN true", "RUN before the first FROM"),
        ("FROM ${BASE}", "no variable BASE"),
        ("FROM a AS b\nCOPY --from=c /x /y", "no stage 'c'"),
        ("FROM a\nCOPY --chown=1 x y", "COPY --chown=1 x y"),
        ("FROM a\nCMD ray", "must be a JSON list"),
        ("FROM a\nENV NAME value", "needs NAME=VALUE"),
        ("FROM a\nRUN true \\", "continues nowhere"),
        ("FROM a\nRUN <<EOF", "here-document"),
        ("FROM a AS b\nFROM c AS b", "a stage 'b' already"),
    ],
)
def test_what_the_reader_does_not_know_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "Dockerfile").write_text(text)
    with pytest.raises(DockerfileError, match=re.escape(complaint)):
        read(tmp_path / "Dockerfile")


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
    assert {f"k8s/images/{file.name}" for file in FILES if file.name != RECIPE} == built
    for path in re.findall(r"\bk8s/[\w./-]+\w", text):
        assert (ROOT / path).exists(), path


def test_the_cuda_image_has_the_cuda_of_its_pytorch_and_a_compiler() -> None:
    """PyTorch 2.13 has wheels of CUDA 13.0 alone, and vLLM compiles kernels when an engine starts."""
    file = ROOT / "k8s" / "images" / "replica-cuda.Dockerfile"
    lines, base = instructions(file), read(file).arguments["CUDA_IMAGE"]
    (backend,) = re.findall(r"--torch-backend=cu(\d\d)(\d)", " ".join(lines))
    assert re.search(rf"cuda:{'.'.join(backend)}\.\d+-devel-", base)
    last = " ".join(lines)
    assert "CUDA_HOME=/usr/local/cuda " in last
    assert ":/usr/local/cuda/bin:" in last


def test_the_cuda_images_pins_are_those_of_the_tests() -> None:
    """Only what has another build for GPUs differs. PyTorch's CUDA 13 needs cuda-python 13: earlier ones overwrite
    files of its bindings, and an engine with two ranks then fails while it starts.
    """
    cuda, tested = pins("replica-cuda.txt"), pins("cpu.txt")
    differ = {name for name in cuda.keys() & tested.keys() if cuda[name] != tested[name].partition(" ;")[0]}
    (stated,) = re.findall(r"^OF_CUDA := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(stated.split("|")) == differ
    assert cuda["cuda-python"].startswith("cuda-python==13.")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for line in (line for name in ("gpu", "router", "objects", "otel") for line in extras[name]):
        wanted = Requirement(line)
        pinned = cuda.get(normal(wanted.name), "").partition("==")[2]
        assert wanted.name == "penstock-llm" or wanted.specifier.contains(pinned), f"{line}: {pinned}"


def test_routers_and_cpu_replicas_are_built_for_both_processors() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    built = {item["name"]: item["platforms"].split(",") for item in jobs["build"]["strategy"]["matrix"]["include"]}
    both = ["linux/amd64", "linux/arm64"]
    assert {
        "penstock-router": both,
        "penstock-replica-cpu": both,
        "penstock-replica-cuda": ["linux/amd64"],
    } == built
    (push,) = [step for step in jobs["build"]["steps"] if step.get("id") == "push"]
    assert ("${{ matrix.platforms }}", "mode=max", True) == tuple(
        push["with"][key] for key in ("platforms", "provenance", "sbom")
    )


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
