"""Log lines: an event and its fields, for programs and for people."""

from __future__ import annotations

import json
import logging
import re
import sys

import pytest

from cluster.telemetry.logs import JsonFormatter, TextFormatter


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
