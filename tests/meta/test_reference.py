"""The reference pages say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock.client
from k8s.render import dashboards
from penstock.v1 import admin_pb2, inference_pb2, jobs_pb2, types_pb2
from tests.k8s.alerts import alerts, names

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = ("_bucket", "_sum", "_count")
"""Series of a histogram."""


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def headings(page: str) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", text(page), re.MULTILINE))


@pytest.mark.slow
def test_reference_pages_are_current() -> None:
    """`make reference` brings them up to date."""
    command = [sys.executable, str(ROOT / ".docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)


def test_every_metric_of_dashboards_and_alerts_has_an_entry() -> None:
    described = set(re.findall(r"^\| `(\w+)`", text("cluster/reference/metrics.md"), re.MULTILINE))
    queries = [query for _, _, query in dashboards.queries()] + [str(rule["expr"]) for rule in alerts()]
    used = {name for query in queries for name in names(query)}
    plain = {next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), name) for name in used}
    assert set() == plain - described


def test_every_public_name_of_the_client_has_an_entry() -> None:
    assert set() == set(penstock.client.__all__) - headings("proto/reference/client.md")


def test_every_message_and_service_has_an_entry() -> None:
    files = [module.DESCRIPTOR for module in (admin_pb2, inference_pb2, jobs_pb2, types_pb2)]
    defined = {name for file in files for name in (*file.message_types_by_name, *file.services_by_name)}
    assert set() == defined - headings("proto/reference/api.md")
