"""Several models on one number of GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.loadtest.simulate.test_command import run

ENGINE = "base-ms = 40\nmax-num-seqs = 8\nmax-num-batched-tokens = 512\ncold-start = 20\n"


def write_trace(path: Path, gap_s: float, requests: int, late_s: float = 0.0) -> None:
    rows = [f"{late_s * (n > 0) + n * gap_s},{200 + 7 * n % 300},{20 + n % 30}" for n in range(requests)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_trace(tmp_path / "chat.csv", 0.06, 1200)
    write_trace(tmp_path / "code.csv", 0.4, 200, late_s=60.0)
    return tmp_path


def models(folder: Path, gpus: int, chat: str = "", code: str = "") -> Path:
    path = folder / "models.toml"
    path.write_text(
        f"gpus = {gpus}\n[all]\n{ENGINE}"
        f'[models.chat]\ntrace = "chat.csv"\nreplicas = 2\n{chat}\n'
        f'[models.code]\ntrace = "code.csv"\nslo-ttft = 5\n{code}\n'
    )
    return path


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a single run does not have, or has otherwise."""
    beside = {"wall_s", "cpu_s", "gpus_per_replica", "gpu_hours", "waited_for_gpus_s", "origin", "notes"}
    return {name: value for name, value in found.items() if name not in beside}


@pytest.mark.parametrize("policy", ["static", "penstock", "hpa"])
def test_models_with_enough_gpus_are_served_as_if_alone(
    folder: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    path = models(folder, 64, f'policy = "{policy}"', f'policy = "{policy}"')
    status, out, _ = run(capsys, "--models", path, "--json")
    found = json.loads(out)
    assert (0, {"chat", "code"}) == (status, found["models"].keys())
    flags = ("--base-ms", "40", "--max-num-seqs", "8", "--max-num-batched-tokens", "512", "--cold-start", "20")
    for name, more in (("chat", ("--replicas", "2")), ("code", ("--slo-ttft", "5"))):
        alone = json.loads(
            run(capsys, "--trace", folder / f"{name}.csv", *flags, *more, "--policy", policy, "--json")[1]
        )
        assert figures(alone) == figures(found["models"][name])
        assert 0.0 == found["models"][name]["waited_for_gpus_s"]


def test_models_that_share_too_few_gpus_wait_for_each_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many, few = (
        json.loads(run(capsys, "--models", models(folder, gpus, "", "gpus = 2"), "--json")[1]) for gpus in (40, 4)
    )
    assert 4 >= few["most_gpus_used"]
    assert many["most_gpus_used"] > 4
    assert sum(each["waited_for_gpus_s"] for each in few["models"].values()) > 0
    assert few["attainment"] < many["attainment"]
    assert 4 * few["virtual_s"] / 3600 >= few["gpu_hours"]
    assert pytest.approx(few["gpu_hours"]) == sum(each["gpu_hours"] for each in few["models"].values())


def test_prefill_replicas_of_a_model_hold_gpus(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = 'policy = "static"\nreplicas = 3\nprefill-decode = "1:2"\ngpus = 2'
    path = models(folder, 8, 'policy = "static"', split)
    found = json.loads(run(capsys, "--models", path, "--json")[1])
    assert 8 == found["most_gpus_used"]
    assert pytest.approx(6 * found["virtual_s"] / 3600) == found["models"]["code"]["gpu_hours"]
    status, _, err = run(capsys, "--models", models(folder, 7, 'policy = "static"', split))
    assert (2, True) == (status, "gpus must be at least 8, those of all models' replicas, got 7" in err)


def test_the_table_and_the_page_have_a_row_per_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = folder / "page.html"
    path = models(folder, 8, 'policy = "static"', 'policy = "static"\nslow = "1:2"')
    status, out, _ = run(capsys, "--models", path, "--html", page)
    words = " ".join(out.split())
    assert (0, True, True) == (status, "chat" in words, "code: 1 replica at first with steps 2 times as long" in words)
    text = page.read_text()
    assert all(word in text for word in ("2 models on 8 GPUs", "waited for GPUs", "<h2>chat</h2>", "<h2>code</h2>"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpus = 0\n[models.a]\ntrace='sample'", "gpus must be a whole number from 1 to 100000, got 0"),
        ("[models.a]\ntrace='sample'", "gpus must be a whole number from 1 to 100000, got none"),
        ("gpus = 4", "must have at least one table [models.NAME]"),
        ("gpus = 4\nhosts = 3\n[models.a]\ntrace='sample'", "must have gpus, all and models only, got hosts"),
        ("gpus = 4\n[models.a]\nreplicas = 1", "models.a.trace must be given"),
        ("gpus = 4\n[models.a]\ntrace='sample'\ngpus = 1.5", "models.a.gpus must be a whole number from 1 to 100000"),
        ("gpus = 4\n[models.a]\ntrace='sample'\nhtml = 'x'", "models.a.html is not of one model, got 'x'"),
        ("gpus = 4\n[models.a]\ntrace='sample'\nspeed = 2", "models.a: unrecognized arguments: --speed=2"),
        (
            "gpus = 4\n[models.a]\ntrace='sample'\nreplicas = -1",
            "models.a: argument --replicas: must be a whole number of at least 0, got '-1'",
        ),
        ("gpus = 4\n[models.a]\ntrace='sample'\ndie = [1, 2]", "models.a.die must be a text, a number, true or false"),
        (
            "gpus = 4\n[models.a]\ntrace='sample'\npolicy='static'\ntarget = 2",
            "models.a: target is for policies that add replicas, not for static",
        ),
        (
            "gpus = 4\n[models.a]\ntrace='sample'\ngpus = 3\nreplicas = 2",
            "gpus must be at least 6, those of all models' replicas, got 4",
        ),
        ("gpus = 4\nmodels = 3", "models must be a table, got 3"),
        ("gpus = ", "is not TOML"),
    ],
)
def test_files_that_say_nothing_useful_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    path = tmp_path / "m.toml"
    path.write_text(text)
    status, out, err = run(capsys, "--models", path)
    assert (2, "") == (status, out)
    assert words in " ".join(err.split())


def test_flags_beside_the_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "--models", tmp_path / "none.toml", "--replicas", "2")
    assert (2, True) == (status, "replicas does not go together with models" in " ".join(err.split()))
    status, _, err = run(capsys, "--models", tmp_path / "none.toml")
    assert (2, True) == (status, "cannot be read: " in " ".join(err.split()))
