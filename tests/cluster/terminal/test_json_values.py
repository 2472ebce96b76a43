"""What `--json` prints of a value."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from typing import Any

import pytest

from cluster.terminal.json_values import plain, print_json
from penstock.models import FinishReason, RequestClass

AT = datetime.datetime(2027, 1, 15, 9, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class _Told:
    request_class: RequestClass
    renews_at: datetime.datetime


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (_Told(RequestClass.BATCH, AT), {"request_class": "batch", "renews_at": "2027-01-15T09:00:00+00:00"}),
        ({"at": {RequestClass.BATCH: AT.date()}}, {"at": {"batch": "2027-01-15"}}),
        ((FinishReason.LENGTH, b"\x00\xff"), ["length", "00ff"]),
        ([float("inf"), float("nan"), 0.5, True, None], [None, None, 0.5, True, None]),
    ],
)
def test_a_value_is_json(value: Any, expected: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected == plain(value)
    print_json(value)
    assert expected == json.loads(capsys.readouterr().out)


def test_without_an_indent_a_value_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1, 2]}, indent=None)
    assert '{"a": [1, 2]}\n' == capsys.readouterr().out
