"""The parts of `make images-check` that need neither root nor a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.images.build import Image, build
from tests.images.dockerfile import read
from tests.images.runtime import bundle
from tests.k8s.charts import render
from tests.k8s.view import pods

FILE = """
ARG BASE=debian:12
FROM ${BASE} AS first
ARG NAME=one
WORKDIR /source
COPY pyproject.toml README.md ./
COPY requirements requirements
ENV WHO=${NAME} PATH=/opt/bin:${PATH}
FROM first AS second
FROM ${BASE}
COPY --from=second /source/requirements /pins
COPY --from=first /source/README.md /docs/about.md
USER 10001:10001
CMD ["python", "-m", "router"]
"""


def base(folder: Path) -> Path:
    (folder / "base/etc").mkdir(parents=True)
    (folder / "base/etc/os-release").write_text("ID=debian\n", encoding="utf-8")
    return folder / "base"


def test_stages_are_built_on_each_other_and_copied_from(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(FILE, encoding="utf-8")
    root, said = base(tmp_path), list[str]()
    image = build(read(tmp_path / "Dockerfile"), tmp_path / "out", lambda _: root, said.append, {"NAME": "two"})
    first = tmp_path / "out/0-first"
    assert (first / "source/pyproject.toml").is_file()
    assert (tmp_path / "out/1-second/source/requirements/cpu.txt").is_file()
    assert {"pins", "docs", "etc"} == {path.name for path in image.root.iterdir()}
    assert (image.root / "docs/about.md").read_bytes() == (first / "source/README.md").read_bytes()
    assert ("10001:10001", ["python", "-m", "router"]) == (image.user, image.command)
    assert "FROM debian:12" in said


def test_variables_of_stages_are_replaced_and_go_to_stages_above(tmp_path: Path) -> None:
    text = FILE.partition("FROM second")[0].rpartition("FROM ${BASE}\n")[0]
    (tmp_path / "Dockerfile").write_text(text, encoding="utf-8")
    root = base(tmp_path)
    image = build(read(tmp_path / "Dockerfile"), tmp_path / "out", lambda _: root, lambda _: None, {"NAME": "two"})
    assert "two" == image.environment["WHO"]
    assert image.environment["PATH"].startswith("/opt/bin:/usr/local/sbin")
    assert "/source" == image.folder


def test_a_bundle_is_the_rendered_pod(tmp_path: Path) -> None:
    (pod,) = [each for each in pods(render()) if each.owner == "Deployment/penstock-router"]
    container = pod.spec["containers"][0]
    values = {"QUEUE_REDIS_PASSWORD": "word"}
    image = Image(tmp_path / "root", {"PATH": "/opt/penstock/bin"}, folder="/home/penstock", command=["sh"])
    made = bundle(tmp_path / "b", image, pod.spec, container, values=values, files={"settings": {"settings.toml": "x"}})
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))
    process = config["process"]
    assert (10001, 10001, True) == (process["user"]["uid"], process["user"]["gid"], process["noNewPrivileges"])
    assert config["root"]["readonly"]
    assert not any(process["capabilities"].values())
    assert ["python", "-m", "router", "--settings", "/etc/penstock/settings.toml"] == process["args"]
    assert "PENSTOCK_REDIS__URL=redis://:word@penstock-redis:6379/0" in process["env"]
    mounts = {mount["destination"]: mount for mount in config["mounts"]}
    settings = mounts["/etc/penstock/settings.toml"]
    assert "ro" in settings["options"]
    assert "x" == Path(settings["source"]).read_text(encoding="utf-8")
    assert "rw" in mounts["/tmp"]["options"]  # noqa: S108 - the pod's


def test_a_variable_that_nobody_gives_is_an_error(tmp_path: Path) -> None:
    (pod,) = [each for each in pods(render()) if each.owner == "Deployment/penstock-router"]
    with pytest.raises(KeyError, match="QUEUE_REDIS_PASSWORD"):
        bundle(tmp_path / "b", Image(tmp_path), pod.spec, pod.spec["containers"][0])
