"""Checks of requests for vectors, classes and scores."""

from __future__ import annotations

import pytest

from cluster.errors import InvalidRequestError
from penstock.v1 import embeddings_pb2 as api
from penstock.values.embeddings import inputs_to_proto
from router.validation import RequestLimits
from router.validation.pooling import check_score


@pytest.mark.parametrize(
    ("queries", "documents", "field", "problem"),
    [
        ("a" * 101, "a", "queries", "must have at most 100 bytes of text, got 101"),
        ("a" * 60, "a" * 60, "documents", "must have at most 100 bytes of text together with queries, got 120"),
    ],
)
def test_the_side_of_a_score_that_is_too_long_is_named(queries: str, documents: str, field: str, problem: str) -> None:
    asked = api.ScoreRequest(
        model="pairs", queries=inputs_to_proto("queries", queries), documents=inputs_to_proto("documents", documents)
    )
    with pytest.raises(InvalidRequestError) as refused:
        check_score(asked, RequestLimits(max_prompt_bytes=100))
    assert [(field, problem)] == [(each.field, each.description) for each in refused.value.violations]
