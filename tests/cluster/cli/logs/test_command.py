"""`penstock logs`: the last lines of a cluster's logs, and new ones as they come."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cluster.cli.main import main
from tests.support.terminal import PENSTOCK, Terminal

PLAIN = {"NO_COLOR": "1"}
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    (run / "redis.log").write_text("r1\nr2\n", encoding="utf-8")
    (run / "router-0.log").write_text("a\nb\nc\nhalf", encoding="utf-8")
    return tmp_path


def test_the_last_lines_of_all_logs_have_their_names(state: Path, capsys: Captured) -> None:
    assert 0 == main(["logs", "--state-dir", str(state), "-n", "2"])
    expected = ["redis    | r1", "redis    | r2", "router-0 | b", "router-0 | c"]
    assert expected == capsys.readouterr().out.splitlines()


def test_one_log_is_as_it_is(state: Path, capsys: Captured) -> None:
    assert 0 == main(["logs", "redis", "--state-dir", str(state)])
    assert "r1\nr2\n" == capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["route-0"], "there is no log 'route-0' in {run}, but redis, router-0; did you mean router-0?"),
        (["--state-dir", "{state}/other"], "there are no logs in {state}/other/run; has a cluster run in this state"),
    ],
)
def test_a_log_that_is_not_there_is_named(words: list[str], said: str, state: Path, capsys: Captured) -> None:
    places = {"state": state, "run": state / "run"}
    folder = [] if "--state-dir" in words else ["--state-dir", str(state)]
    assert 2 == main(["logs", *(word.format(**places) for word in words), *folder])
    assert said.format(**places) in capsys.readouterr().err


def event(second: int, level: str, name: str, **fields: object) -> str:
    made = {"time": f"2026-11-26T09:00:{second:02}Z", "level": level, "event": name, "logger": "x", **fields}
    return json.dumps(made) + "\n"


def test_logs_are_merged_by_time_and_events_become_lines(state: Path, capsys: Captured) -> None:
    run = state / "run"
    (run / "redis.log").unlink()
    (run / "router-0.log").write_text(event(1, "info", "link.up", replica="a") + event(4, "error", "lost"), "utf-8")
    (run / "router-1.log").write_text(event(2, "warning", "slow") + "Traceback:\n", encoding="utf-8")
    assert 0 == main(["logs", "--state-dir", str(state)])
    lines = [re.sub(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:", "", line) for line in capsys.readouterr().out.splitlines()]
    assert [
        "router-0 | 01.000 info    link.up replica=a",
        "router-1 | 02.000 warning slow",
        "router-1 | Traceback:",
        "router-0 | 04.000 error   lost",
    ] == lines


@pytest.mark.parametrize("field", ["path", "exception"])
def test_a_clients_text_does_not_steer_the_terminal(state: Path, capsys: Captured, field: str) -> None:
    """A path of an HTTP request may have any characters, also those that make a terminal copy a text."""
    log = state / "run" / "router-0.log"
    log.write_text(event(1, "info", "http.failed", **{field: "/v1/\x1b]52;c;eA==\x07"}), encoding="utf-8")
    assert 0 == main(["logs", "router-0", "--state-dir", str(state)])
    assert capsys.readouterr().out.rstrip().endswith(r"/v1/\x1b]52;c;eA==\x07")


def test_lines_are_filtered_before_the_last_ones_are_taken(state: Path, capsys: Captured) -> None:
    log = state / "run" / "router-0.log"
    log.write_text(event(0, "error", "old") + "".join(event(1, "info", "many") for _ in range(50)), encoding="utf-8")
    assert 0 == main(["logs", "router-0", "--state-dir", str(state), "--level", "error"])
    assert capsys.readouterr().out.endswith("error   old\n")
    assert 0 == main(["logs", "router-0", "--state-dir", str(state), "--since", "2026-11-26T09:00:01Z"])
    assert 50 == len(capsys.readouterr().out.splitlines())
    assert 0 == main(["logs", "router-0", "--state-dir", str(state), "-n", "1", "--raw"])
    assert event(1, "info", "many") == capsys.readouterr().out


def test_a_large_log_is_read_from_its_end(state: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.cli.logs.command.FIRST_BYTES", 10)
    (state / "run" / "redis.log").write_text("first\nsecond\nthird\n", encoding="utf-8")
    assert 0 == main(["logs", "redis", "--state-dir", str(state)])
    assert "third\n" == capsys.readouterr().out


@pytest.mark.slow
def test_following_waits_for_a_cluster_and_sees_a_log_that_is_replaced(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Terminal(*PENSTOCK, "logs", "-f", "--state-dir", str(tmp_path), environ=PLAIN) as terminal:
        terminal.until("waiting for a cluster")
        run.mkdir()
        (run / "redis.log").write_text("one\n", encoding="utf-8")
        terminal.until("redis | one")
        (run / "other").write_text("a longer file at the same path\n", encoding="utf-8")
        (run / "other").replace(run / "redis.log")
        terminal.until("redis | a longer file at the same path")
        terminal.type("\x03")
        assert 130 == terminal.ended()


@pytest.mark.slow
def test_new_lines_and_new_logs_are_followed_until_ctrl_c(state: Path) -> None:
    log = state / "run" / "router-0.log"
    with Terminal(*PENSTOCK, "logs", "--follow", "--state-dir", str(state), environ=PLAIN) as terminal:
        terminal.until("router-0 | c")
        with log.open("a", encoding="utf-8") as file:
            file.write(" line\n")
        terminal.until("router-0 | half line")
        (state / "run" / "ray.log").write_text("started\n", encoding="utf-8")
        terminal.until("ray      | started")
        # Another cluster starts in the folder.
        log.write_text("new\n", encoding="utf-8")
        terminal.until("router-0 | new")
        terminal.type("\x03")
        assert 130 == terminal.ended()
