"""Another planner beside Penstock's: it is asked what the file says, and only points that both answer are compared."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.control.step_model import Shape
from loadtest.benchmarks.rivals.asking import PACKAGE, Answer, Answers, ask, installed, questions
from loadtest.benchmarks.rivals.compare import AS_NAMED, LEFT_OUT, OURS, RIVAL, Asked, compare, tables_of
from loadtest.benchmarks.rivals.reasons import MOST, short
from loadtest.plan.engine.points import Config, Point, known, predict
from loadtest.plan.measured.held_out import HeldOut

CONFIG = Config("llama-3.1-70b", "h100", "fp8", 4)
HEAD = "model_path,system,precision,isl,osl,batch_size,tp_size,pp_size,attention_dp_size,moe_tp_size,moe_ep_size"


def rows_in(folder: Path, *rows: str) -> Path:
    path = folder / "points.csv"
    path.write_text("\n".join([HEAD, *rows]) + "\n", encoding="utf-8")
    return path


def test_a_question_is_what_the_row_says(tmp_path: Path) -> None:
    """Clients of a group, the split of experts, and the precision by the names that the other planner has."""
    dense, experts = questions(
        rows_in(tmp_path, "meta/Llama,h200_sxm,fp8,1024,8192,64,4,1,,,", "m/MoE,b200_sxm,fp4,8192,1024,16,2,1,2,1,4")
    )
    modes = {"gemm_quant_mode": "fp8", "moe_quant_mode": "fp8"}
    assert {
        "model_path": "meta/Llama", "system_name": "h200_sxm", "backend_name": "vllm", "isl": 1024, "osl": 8192,
        "batch_size": 64, "tp_size": 4, "pp_size": 1, **modes,
    } == dense  # fmt: skip
    split = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "gemm_quant_mode")
    assert [2, 2, 1, 4, "nvfp4"] == [experts[name] for name in split]


def test_a_precision_that_weights_tell_is_not_asked_for(tmp_path: Path) -> None:
    (asked,) = questions(rows_in(tmp_path, "openai/gpt-oss-120b,h100_sxm,fp4,1024,1024,4,2,1,1,2,1"))
    assert not {"gemm_quant_mode", "moe_quant_mode"} & set(asked)


def package_in(folder: Path, body: str) -> None:
    """Write a package that answers as the real one's interface does."""
    room = folder / "aiconfigurator" / "cli"
    room.mkdir(parents=True)
    for init in (room.parent / "__init__.py", room / "__init__.py"):
        init.write_text("", encoding="utf-8")
    (room / "api.py").write_text(body, encoding="utf-8")
    facts = folder / "aiconfigurator-1.2.3.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: aiconfigurator\nVersion: 1.2.3\n", encoding="utf-8")


ANSWERING = """
from types import SimpleNamespace
print("noise of an import")
def cli_estimate(isl, osl):
    print("noise of an answer")
    if osl == 3:
        raise ValueError("no database\\nand more lines")
    return SimpleNamespace(ttft=isl, tpot=osl)
"""


@pytest.mark.slow
def test_answers_come_in_the_order_of_questions_and_one_failure_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package_in(tmp_path, ANSWERING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    counts: list[int] = []
    asked = [{"isl": 100, "osl": 20}, {"isl": 1, "osl": 3}, {"isl": 50, "osl": 10}, {"isl": 50, "osl": 0}]
    told = ask(Path(sys.executable), asked, counts.append)
    assert isinstance(told, Answers)
    assert "1.2.3" == told.version
    assert (Answer(0.1, 0.02), "no database", Answer(0.05, 0.01)) == (told.each[0], told.each[1].why, told.each[2])
    assert "no times above 0: TTFT 50 ms, TPOT 0 ms" == told.each[3].why
    assert [0, 1, 2, 3, 4] == counts


@pytest.mark.slow
def test_a_package_that_breaks_is_told_by_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package_in(tmp_path, "raise RuntimeError('no library')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "RuntimeError: no library" == ask(Path(sys.executable), [{"isl": 1, "osl": 1}])


class Commands:
    """A shell whose commands end with a status by what they contain."""

    def __init__(self, failing: str = "", said: str = "") -> None:
        self.failing, self.said = failing, said
        self.commands: list[str] = []

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.commands.append(" ".join(command))
        failed = bool(self.failing) and self.failing in self.commands[-1]
        return subprocess.CompletedProcess(command, int(failed), "", self.said if failed else "")


def test_a_package_that_cannot_be_had_is_told_by_the_installer(tmp_path: Path) -> None:
    shell = Commands("pip install", "WARNING: x\nERROR: No matching distribution found\n\n")
    assert "No matching distribution found" == installed(tmp_path / "none", shell)
    assert shell.commands[-1].endswith(PACKAGE)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ERROR: No matching distribution found for x==1\n", "No matching distribution found for x==1"),
        (
            "Failed to load /srv/out/rival/lib/python3.12/site-packages/x/systems/h100_sxm.yaml: no 'vllm'",
            "Failed to load h100_sxm.yaml: no 'vllm'",
        ),
        ("[Errno 2] No such file: '~/.cache/hub/config.json'.", "[Errno 2] No such file: 'config.json'"),
        ("see https://example.org/a/b for 3/4 of it", "see https://example.org/a/b for 3/4 of it"),
        ("batch of " + "many words " * 40, "batch of " + ("many words " * 10).strip() + "…"),
    ],
)
def test_a_reason_is_one_short_line_without_folders_of_this_machine(said: str, told: str) -> None:
    assert told == short(said)
    assert len(told) <= MOST


@pytest.mark.slow
def test_points_without_an_answer_are_counted_by_the_short_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same failure in two folders is one reason."""
    body = "def cli_estimate(n):\n    raise OSError(f'/tmp/{n}/model/config.json is not there')\n"
    package_in(tmp_path, body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told = ask(Path(sys.executable), [{"n": 1}, {"n": 2}])
    assert isinstance(told, Answers)
    assert ["config.json is not there"] * 2 == [each.why for each in told.each]


def test_an_installer_without_words_is_told_by_its_status(tmp_path: Path) -> None:
    assert str(installed(tmp_path, Commands("-m venv"))).endswith(" ended with status 1")


def test_a_package_that_is_there_is_not_installed_again(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    shell = Commands()
    assert tmp_path / "bin" / "python" == installed(tmp_path, shell)
    assert 1 == len(shell.commands)


def asked_about(clients: int, factor: float, answer: Answer, config: Config = CONFIG) -> Asked:
    """Return a point that took so many times as long as Penstock's prior says."""
    point, found = Point(config, Shape(1000, 500), clients, 1.0, 1.0), known(CONFIG)
    assert not isinstance(found, str)
    said = predict(replace(point, config=CONFIG), found)
    assert said is not None
    point = replace(point, ttft_s=said.ttft_s * factor, tpot_s=said.itl_s * factor)
    right = Answer(answer.ttft_s * point.ttft_s, answer.tpot_s * point.tpot_s, answer.why)
    return Asked(point, point, right)


def test_only_points_that_both_answer_are_compared() -> None:
    asked = [
        asked_about(4, 1.0, Answer(1.5, 1.2)),
        asked_about(8, 1.25, Answer(0.5, 0.8)),
        asked_about(16, 1.0, Answer(why="no database")),
        asked_about(16, 1.0, Answer(1.0, 1.0), replace(CONFIG, model="nobody/knows-it")),
    ]
    unseen = HeldOut("llama", True, 1, 0.0, 0.0, errors={asked[0].run: 0.3})
    found = compare(asked, [unseen], [replace(unseen, errors={asked[0].run: -0.4})])
    whole = {each.who: each for each in found.whole}
    assert pytest.approx([0.0, -0.2]) == whole[OURS].tpot
    assert whole[OURS].tpot == whole[AS_NAMED].tpot
    assert pytest.approx([0.2, -0.2]) == whole[RIVAL].tpot
    assert pytest.approx([0.5, -0.5]) == whole[RIVAL].ttft
    assert {"no database": 1} == found.unanswered
    # The model was left out of a fit with the first point only.
    inside = {each.who: each for each in found.fit}
    assert ([0.3], [-0.4]) == (list(inside[LEFT_OUT].tpot), list(inside[LEFT_OUT].ttft))
    assert 1 == len(inside[RIVAL].tpot)
    assert ["llama-3.1-70b h100 fp8"] == list(found.groups)


def test_tables_and_json_have_the_same_figures() -> None:
    asked = [asked_about(4, 1.0, Answer(1.5, 1.25))]
    found = compare(asked, [], [])
    data = json.loads(json.dumps(found.as_json()))
    assert [1, pytest.approx(0.25), pytest.approx(0.5)] == [
        data["all"][2][name] for name in ("points", "tpot_median", "ttft_bias")
    ]
    assert ["0.0%", "0.0%", "25.0%"] == list(tables_of(found)[0].columns[2].cells)


def test_without_any_point_that_both_answer_tables_are_empty() -> None:
    found = compare([asked_about(4, 1.0, Answer(why="no database"))], [], [])
    assert [0, 0, 0] == [len(each.rows) for each in tables_of(found)]
