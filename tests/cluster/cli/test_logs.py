"""`penstock logs`: the last lines of a cluster's logs, and new ones as they come."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.cli.main import main
from tests.support.terminal import PENSTOCK, Terminal

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


@pytest.mark.slow
def test_new_lines_and_new_logs_are_followed_until_ctrl_c(state: Path) -> None:
    log = state / "run" / "router-0.log"
    with Terminal(*PENSTOCK, "logs", "--follow", "--state-dir", str(state)) as terminal:
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
