"""The hosted workflows are well formed, pinned, and ask for no more rights than they use."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
RELEASE = ROOT / ".github" / "workflows" / "release.yaml"


def loaded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    # YAML 1.1 takes the key `on` for true.
    found["on"] = found.pop(True)
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_fits_githubs_schema(path: Path) -> None:
    file = distribution("check-jsonschema").locate_file("check_jsonschema/builtin_schemas/vendor/github-workflows.json")
    schema = json.loads(Path(str(file)).read_text(encoding="utf-8"))
    validator = jsonschema.Draft7Validator(schema)
    assert [] == [f"{list(error.path)}: {error.message[:200]}" for error in validator.iter_errors(loaded(path))]
    broken = loaded(path)
    next(iter(broken["jobs"].values()))["run-on"] = "nowhere"
    assert list(validator.iter_errors(broken))


def audit(*paths: Path) -> list[dict[str, Any]]:
    """Return what zizmor finds."""
    zizmor = Path(sys.executable).with_name("zizmor")
    command = [
        zizmor,
        "--offline",
        "--no-progress",
        "--no-exit-codes",
        "--format=json",
        "--min-severity=medium",
        *paths,
    ]
    found: list[dict[str, Any]] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


@pytest.mark.slow
def test_an_audit_finds_nothing(tmp_path: Path) -> None:
    """Rights, expressions that run as code, caches that others write, versions that move."""
    assert [] == [(each["ident"], each["desc"]) for each in audit(*WORKFLOWS)]
    moving = re.sub(r"@[0-9a-f]{40} # \S+", "@v4", RELEASE.read_text(encoding="utf-8"))
    (tmp_path / "moving.yaml").write_text(moving, encoding="utf-8")
    assert "unpinned-uses" in {each["ident"] for each in audit(tmp_path / "moving.yaml")}


def test_every_action_is_pinned_to_one_commit_and_says_its_version() -> None:
    pins: dict[str, set[tuple[str, str]]] = {}
    for path in WORKFLOWS:
        for line in path.read_text(encoding="utf-8").splitlines():
            if (used := re.search(r"uses: (\S+)(.*)", line)) is None or used[1].startswith("./"):
                continue
            pin = re.fullmatch(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})", used[1])
            version = re.fullmatch(r" # (v\d+\.\d+\.\d+)", used[2])
            assert pin is not None, line
            assert version is not None, line
            pins.setdefault(pin[1], set()).add((pin[2], version[1]))
    assert {1} == {len(found) for found in pins.values()}
    assert len(pins) == len({commit for found in pins.values() for commit, _ in found})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_job_refers_to_is_there(path: Path) -> None:
    jobs = loaded(path)["jobs"]
    for name, job in jobs.items():
        needs = job.get("needs", [])
        for other in [needs] if isinstance(needs, str) else needs:
            assert other in jobs, (name, other)
        steps = [step["id"] for step in job.get("steps", []) if "id" in step]
        text = json.dumps(job)
        assert set(re.findall(r"steps\.(\w+)\.", text)) <= set(steps), name
        matrix = job.get("strategy", {}).get("matrix", {})
        keys = {key for item in matrix.get("include", [matrix]) for key in item}
        assert set(re.findall(r"matrix\.(\w+)", text)) <= keys, name
        for target in re.findall(r"\bmake ([\w-]+)", text):
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), target


def test_a_tag_alone_releases_and_everything_else_only_builds() -> None:
    assert {"push": {"tags": ["v*"]}} == loaded(RELEASE)["on"]
    for path in WORKFLOWS:
        if path != RELEASE:
            assert "tags" not in json.dumps(loaded(path)["on"])


def test_a_release_publishes_everything_with_provenance() -> None:
    jobs = loaded(RELEASE)["jobs"]
    assert "./.github/workflows/images.yaml" == jobs["images"]["uses"]
    assert {"workflow_call"} <= loaded(ROOT / ".github/workflows/images.yaml")["on"].keys()
    # Wheels: attested where they are built, and by PyPI where they are published, without a token.
    built = [step for step in jobs["distributions"]["steps"] if "attest-build-provenance" in step.get("uses", "")]
    assert ["out/dist/penstock_*"] == [step["with"]["subject-path"] for step in built]
    assert {"id-token": "write"} == jobs["pypi"]["permissions"]
    (publish,) = [step for step in jobs["pypi"]["steps"] if "pypi-publish" in step.get("uses", "")]
    assert {"packages-dir": "dist", "attestations": True} == publish["with"]
    # Nothing is published before images and chart were tried on a cluster.
    assert {"distributions", "images"} == set(jobs["pypi"]["needs"])
    assert "pypi" == jobs["documents"]["needs"]
    # A called workflow has no more rights than its caller gives.
    given = jobs["images"]["permissions"]
    for name, job in loaded(ROOT / ".github/workflows/images.yaml")["jobs"].items():
        assert job.get("permissions", {}).items() <= given.items(), name
