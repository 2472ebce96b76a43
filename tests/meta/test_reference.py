"""The reference pages say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock.client
from cluster import errors
from k8s.render import dashboards
from penstock.v1 import admin_pb2, embeddings_pb2, inference_pb2, jobs_pb2, types_pb2
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


def test_every_metric_has_a_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| *(.*?) *\|$", text("cluster/reference/metrics.md"), re.MULTILINE)
    assert [] == [name for name, meaning in rows if not meaning]
    forecast = {f"penstock_autoscaler_{name}" for name in ("forecast_error", "forecast_weight", "announced_part")}
    assert forecast <= {name for name, _ in rows}, "those that a leader has only with a record or announcements"


def test_every_public_name_of_the_client_has_an_entry() -> None:
    assert set() == set(penstock.client.__all__) - headings("proto/reference/client.md")


def test_every_error_has_a_word_a_meaning_and_a_remedy_of_its_own_on_the_page() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+) \|$", text("proto/reference/errors.md"), re.MULTILINE)
    described = {reason: cells.split(" | ") for reason, cells in rows}
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type)} - {errors.RequestError, errors.LinkError}
    assert len(rows) == len(described) == len(kinds)
    for kind in kinds:
        assert {"reason", "remedy", "__doc__"} <= set(vars(kind)), kind
        assert kind.remedy == described[kind.reason][-1]


def test_every_reason_that_a_document_names_exists() -> None:
    reasons = {kind.reason for kind in vars(errors).values() if isinstance(kind, type)}
    (table,) = re.findall(r"^\| status \| reasons .*?\n\n", text("router/README.md"), re.MULTILINE | re.DOTALL)
    cells = [line.split("|")[2] for line in table.strip().splitlines()[2:]]
    named = {word for cell in cells for word in re.findall(r"`([A-Z_]+)`", cell)}
    assert set() == named - reasons
    assert {errors.QueueFullError.reason, errors.NotInTimeError.reason} <= named


def test_every_message_and_service_has_an_entry() -> None:
    files = [module.DESCRIPTOR for module in (admin_pb2, embeddings_pb2, inference_pb2, jobs_pb2, types_pb2)]
    defined = {name for file in files for name in (*file.message_types_by_name, *file.services_by_name)}
    assert set() == defined - headings("proto/reference/api.md")
