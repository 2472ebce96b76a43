"""Items of jobs on files."""

from __future__ import annotations

import pytest

from cluster.errors import InvalidRequestError
from penstock.batch.input import ENDPOINTS
from penstock.v1 import jobs_pb2 as api
from router.jobs.lines import name_of, read_item
from tests.router.http.files.support import line
from tests.support.stack import request


def test_an_item_is_a_line_of_a_file_or_a_message() -> None:
    item = api.JobItem(custom_id="a", request=request())
    assert read_item("demo.0a", item.SerializeToString(), ENDPOINTS) == (item, "")
    found, _ = read_item("demo.0a-0b", line(7).encode(), ENDPOINTS)
    assert (found.custom_id, found.request.sampling.max_tokens) == ("q7", 2)


@pytest.mark.parametrize("body", [b"{", b"\xff", line(1, temperature="x").encode(), line(1, "/v1/other").encode()])
def test_a_line_that_cannot_be_served_any_more_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        read_item("demo.0a-0b", body, ENDPOINTS)


@pytest.mark.parametrize(
    ("body", "name"),
    [(line(7).encode(), "q7"), (b"{", ""), (b"[]", ""), (b'{"custom_id": 1}', ""), (b"[" * 100_000, ""), (b"\xff", "")],
)
def test_a_line_is_named_where_it_has_a_name(body: bytes, name: str) -> None:
    assert name_of(body) == name
