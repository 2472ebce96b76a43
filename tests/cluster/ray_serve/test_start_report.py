"""A start that is reported by several processes of an engine is read as one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.ray_serve.start_report import VARIABLE, Failure, StartReport, failures, report_base, stages
from deployments.engines.vllm.stages import listen
from deployments.engines.vllm.startup.launch import failed


def report(folder: Path, pool: str = "demo", replica: str = "a") -> StartReport:
    base = report_base(str(folder / "settings.json"), pool, replica)
    assert base is not None
    return StartReport(base)


def test_what_replicas_of_a_pool_do_is_read_without_those_of_others(tmp_path: Path) -> None:
    for replica, stage in (("a", "loading"), ("b", "loading"), ("c", "compiling")):
        report(tmp_path, replica=replica).stage(stage)
    report(tmp_path, pool="demo-2").stage("warming up")
    assert ["loading", "compiling"] == stages(tmp_path / "starts", "demo")
    assert ["warming up"] == stages(tmp_path / "starts", "demo-2")


def test_the_first_error_is_kept_and_the_whole_failure_is_read(tmp_path: Path) -> None:
    one = report(tmp_path)
    one.stage("loading")
    one.cause("RuntimeError: out of memory\nof the GPU")
    one.cause("Exception: WorkerProc initialization failed")
    assert "RuntimeError: out of memory\nof the GPU" == one.first_cause()
    one.fail(Failure("first line\nsecond line", final=False))
    two = report(tmp_path, replica="b")
    two.fail(Failure("settings", final=True))
    os.utime(tmp_path / "starts" / "demo@b.failure", (2_000_000_000, 2_000_000_000))
    assert [Failure("first line\nsecond line", False), Failure("settings", True)] == list(
        failures(tmp_path / "starts", "demo")
    )
    assert [] == stages(tmp_path / "starts", "demo")
    for each in (one, two):
        each.clear()
    assert [] == list((tmp_path / "starts").iterdir())


def test_a_start_for_which_nobody_waits_and_a_full_disk_change_nothing(tmp_path: Path) -> None:
    assert report_base("", "demo", "a") is None
    (tmp_path / "file").write_text("", encoding="utf-8")
    for nowhere in (StartReport(None), StartReport(tmp_path / "file" / "x")):
        nowhere.stage("loading")
        nowhere.cause("x")
        nowhere.fail(Failure("x", final=True))
        nowhere.clear()
        assert "" == nowhere.first_cause()


@pytest.fixture
def inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartReport]:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "starts" / "demo@a"))
    listen()
    handlers = {name: logging.getLogger(name).handlers[-1] for name in ("vllm", "huggingface_hub")}
    level = logging.getLogger("vllm").level
    logging.getLogger("vllm").setLevel("INFO")
    yield StartReport.of_process()
    logging.getLogger("vllm").setLevel(level)
    for name, handler in handlers.items():
        logging.getLogger(name).removeHandler(handler)


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("Starting to load model /m...", "loading the weights"),
        ("Warming up model for the compilation...", "compiling and warming up"),
        ("'[Errno -2]' thrown while requesting GET https://hub", "waiting for the model hub: '[Errno -2]' thrown"),
    ],
)
def test_stages_are_read_off_the_engines_log(inherited: StartReport, tmp_path: Path, line: str, stage: str) -> None:
    logging.getLogger("vllm.v1.worker").info("%s", line)
    assert stages(tmp_path / "starts", "demo")[0].startswith(stage)
    logging.getLogger("vllm.v1.worker").info("Anything else")
    assert stages(tmp_path / "starts", "demo")[0].startswith(stage)


@pytest.mark.parametrize(("error", "final"), [(ValueError("no\nweights"), True), (RuntimeError("no\nmemory"), False)])
def test_the_error_that_ended_an_engines_process_is_the_cause(
    inherited: StartReport, error: Exception, final: bool
) -> None:
    try:
        raise error
    except type(error):
        logging.getLogger("vllm.v1.executor").exception("WorkerProc failed to start.")
    logging.getLogger("vllm.v1.engine").error("EngineCore failed to start.", exc_info=RuntimeError("see above"))
    told = failed(RuntimeError("Engine core initialization failed. See root cause above."))
    assert f"vLLM did not start: {type(error).__name__}: {error}" == str(told)
    assert final is told.final
