"""`penstock weights` as a process, as a Job and an init container run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cli.main import main
from cluster.sources import source_of
from cluster.weights.cache import what_lacks
from tests.cluster.weights.hub import COMMIT, NAME, Hub, serving
from tests.support.waiting import until_sync

BIG = os.urandom(1 << 20) * 24
FILES = {"config.json": b"{}", "model.safetensors": BIG}
MODEL = f"{NAME}@{COMMIT}"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(dict(FILES)) as hub:
        yield hub


def start(hub: Hub, cache: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cluster.cli.main", "weights", *words, "--cache", str(cache)]
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_TELEMETRY": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def output(process: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = process.communicate(timeout=100)
    return process.returncode, text


@pytest.mark.slow
def test_a_process_that_is_killed_is_followed_by_one_that_goes_on(hub: Hub, tmp_path: Path) -> None:
    """As a Job whose pod was evicted. Readers wait meanwhile, and see nothing half done."""
    hub.holds["model.safetensors"] = 21 << 20
    first = start(hub, tmp_path, "fetch", MODEL)
    waiting = start(hub, tmp_path, "wait", MODEL, "--timeout", "90")
    blobs = tmp_path / "models--org--model" / "blobs"
    until_sync(lambda: any(each.stat().st_size >= 20 << 20 for each in blobs.glob("*.part")))
    first.send_signal(signal.SIGKILL)
    output(first)
    hub.release()
    assert what_lacks(tmp_path, source_of(MODEL))
    assert waiting.poll() is None
    status, text = output(start(hub, tmp_path, "fetch", MODEL))
    assert (0, True) == (status, "complete" in text), text
    assert f"bytes={20 << 20}-" == hub.ranges("model.safetensors")[-1]
    status, text = output(waiting)
    assert (0, True) == (status, f"complete: {MODEL}" in text), text


@pytest.mark.slow
def test_what_can_not_be_had_has_a_status_of_its_own(hub: Hub, tmp_path: Path) -> None:
    """A Job need not try that again."""
    status, text = output(start(hub, tmp_path, "fetch", "org/none"))
    assert (2, True) == (status, "org/none is not at http://127.0.0.1" in text), text
    assert "Traceback" not in text


def test_models_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == main(["weights", "check", MODEL, "--cache", str(tmp_path)])
    assert f"{MODEL} is not complete in {tmp_path}" in capsys.readouterr().err.replace("\n", "")
    assert 1 == main(["weights", "wait", MODEL, "--cache", str(tmp_path), "--timeout", "0"])
    assert "after 0 s" in capsys.readouterr().err


@pytest.mark.slow
def test_a_wait_follows_a_list_that_changes(hub: Hub, tmp_path: Path) -> None:
    """So that a name with a mistake can be mended while pods wait."""
    assert 0 == output(start(hub, tmp_path, "fetch", MODEL))[0]
    models = tmp_path / "models"
    models.write_text("org/mistake\n")
    waiting = start(hub, tmp_path, "wait", "--list", str(models))
    assert waiting.stdout is not None
    assert f"waiting: org/mistake is not in {tmp_path}\n" == waiting.stdout.readline()
    models.write_text(f"{MODEL}\n")
    assert (0, f"complete: {MODEL}\n") == output(waiting)


def test_a_list_must_name_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["weights", "check"])
    assert "MODEL: must name at least one, here or in --list" in capsys.readouterr().err
    missing = tmp_path / "none"
    assert 2 == main(["weights", "check", "--list", str(missing)])
    said = " ".join(capsys.readouterr().err.split())
    assert f"penstock: --list: {missing} cannot be read: No such file or directory" == said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s3://bucket/m", "in an object store, which the engine reads by itself"),
        ("/models/m", "must be a hub id such as org/name, got '/models/m', which is a path"),
        ("https://hub/m", "must be a folder, a hub id, or a URL"),
    ],
)
def test_only_models_of_a_hub_are_fetched(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["weights", "fetch", text])
    assert words in " ".join(capsys.readouterr().err.split())
