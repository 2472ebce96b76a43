"""Log lines: an event and its fields, for programs and for people."""

from __future__ import annotations

import io
import json
import logging
import re
import sys

import pytest

from cluster.telemetry.logs import PACKAGES, JsonFormatter, TextFormatter, configure_logging


def record(**fields: object) -> logging.LogRecord:
    made = logging.LogRecord("cluster.some", logging.WARNING, __file__, 1, "%s.restarted", ("router",), None)
    vars(made).update(fields)
    return made


def test_a_line_for_programs_has_time_level_event_and_fields() -> None:
    line = json.loads(JsonFormatter(router="router-1").format(record(port=50051, path=json)))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    # What JSON does not know is written as its text.
    assert str(json) == line.pop("path")
    assert line == {
        "level": "warning", "event": "router.restarted", "logger": "cluster.some", "router": "router-1", "port": 50051,
    }  # fmt: skip


def test_a_line_for_people_is_short() -> None:
    line = TextFormatter().format(record(port=50051))
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning router\.restarted port=50051", line)


def test_a_clients_text_makes_no_line_and_does_not_steer_a_terminal() -> None:
    line = TextFormatter().format(record(path="/v1/é\n12:00:00 error lost\x1b]52;c;eA==\x07 \udcff"))
    assert line.endswith(r" router.restarted path=/v1/é\n12:00:00 error lost\x1b]52;c;eA==\x07 \udcff")


def test_what_libraries_put_into_every_record_is_left_out() -> None:
    """As Ray does in each process that has imported it."""
    made = record(port=50051, _ray_timestamp_ns=1)
    assert "ray" not in JsonFormatter().format(made) + TextFormatter().format(made)


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
def test_an_error_comes_with_its_traceback(formatter: logging.Formatter) -> None:
    made = record()
    try:
        raise ValueError("a bug")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert "ValueError: a bug" in formatter.format(made)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Return the stream to which a process logs."""
    for logger in map(logging.getLogger, PACKAGES):
        for name in ("handlers", "level", "propagate"):
            monkeypatch.setattr(logger, name, getattr(logger, name))
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    return stream


def test_what_libraries_warn_of_is_a_line_as_any_other(logged: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests have handlers of their own here; a process has none.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logging.getLogger("some.library").info("not of interest")
    try:
        raise ValueError("a bug of theirs")
    except ValueError:
        logging.getLogger("some.library").exception("failed")
    [line] = map(json.loads, logged.getvalue().splitlines())
    assert ("failed", "some.library", "error") == (line["event"], line["logger"], line["level"])
    assert "a bug of theirs" in line["exception"]
