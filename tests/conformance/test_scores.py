"""Scores, rankings and classes, as vLLM's server offers them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.target import MARKS, Target, named, refused

pytestmark = MARKS
SCORE, RERANK, CLASSIFY = ("/score", "/v1/score"), ("/rerank", "/v1/rerank", "/v2/rerank"), "/classify"
DOCUMENTS = ["turbines in dams", "cat food", "water in pipes"]


@pytest.fixture
def model(target: Target) -> str:
    """The model that embeds, which scores by the angle of two vectors."""
    if not target.embedding_model:
        pytest.skip("no model that embeds (give --embedding-model)")
    return target.embedding_model


@pytest.fixture
def classifier(target: Target) -> str:
    """The model that classifies."""
    if not target.classifier_model:
        pytest.skip("no model that classifies (give --classifier-model)")
    return target.classifier_model


@pytest.mark.parametrize("path", SCORE)
@pytest.mark.parametrize(
    ("queries", "documents", "count"),
    [("water", "dams", 1), ("water", DOCUMENTS, 3), (["water", "cats", "dams"], DOCUMENTS, 3)],
    ids=["pair", "one_to_many", "pairs"],
)
async def test_each_pair_has_a_score(
    target: Target, model: str, path: str, queries: Any, documents: Any, count: int
) -> None:
    found = await target.ok(path, {"model": model, "text_1": queries, "text_2": documents})
    assert (found["object"], found["model"]) == ("list", model)
    assert [each["index"] for each in found["data"]] == [*range(count)]
    assert all(-1.001 <= each["score"] <= 1.001 and each["object"] == "score" for each in found["data"])
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")])
async def test_texts_have_either_name(target: Target, model: str, names: tuple[str, str]) -> None:
    found = await target.ok(SCORE[0], {"model": model, names[0]: "water", names[1]: DOCUMENTS})
    alone = await target.ok(SCORE[0], {"model": model, "text_1": "water", "text_2": DOCUMENTS[0]})
    assert found["data"][0]["score"] == pytest.approx(alone["data"][0]["score"], abs=1e-3)


@pytest.mark.parametrize("path", RERANK)
async def test_the_best_document_comes_first(target: Target, model: str, path: str) -> None:
    found = await target.ok(path, {"model": model, "query": "cat food", "documents": DOCUMENTS})
    assert found["id"]
    assert found["model"] == model
    scores = [each["relevance_score"] for each in found["results"]]
    assert scores == sorted(scores, reverse=True)
    assert found["results"][0]["index"] == 1
    assert {each["index"] for each in found["results"]} == {0, 1, 2}
    for each in found["results"]:
        assert each["document"]["text"] == DOCUMENTS[each["index"]]
    assert found["usage"]["total_tokens"] > 0


@pytest.mark.parametrize(("top", "count"), [(1, 1), (2, 2), (99, 3), (0, 3)])
async def test_only_so_many_documents_are_returned(target: Target, model: str, top: int, count: int) -> None:
    body = {"model": model, "query": "water", "documents": DOCUMENTS, "top_n": top}
    assert len((await target.ok(RERANK[0], body))["results"]) == count


async def test_a_ranking_has_the_scores_of_its_pairs(target: Target, model: str) -> None:
    ranked = await target.ok(RERANK[0], {"model": model, "query": "water", "documents": DOCUMENTS})
    scored = await target.ok(SCORE[0], {"model": model, "text_1": "water", "text_2": DOCUMENTS})
    for each in ranked["results"]:
        assert each["relevance_score"] == pytest.approx(scored["data"][each["index"]]["score"], abs=1e-3)


@pytest.mark.parametrize(("texts", "count"), [("one", 1), (["one", "two"], 2)])
async def test_each_text_has_its_classes(target: Target, classifier: str, texts: Any, count: int) -> None:
    found = await target.ok(CLASSIFY, {"model": classifier, "input": texts})
    assert (found["object"], found["model"]) == ("list", classifier)
    assert [each["index"] for each in found["data"]] == [*range(count)]
    for each in found["data"]:
        assert len(each["probs"]) == each["num_classes"] > 1
        assert sum(each["probs"]) == pytest.approx(1, abs=1e-3)
        assert isinstance(each["label"], str | None)
    assert found["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text_1": None}, "text_1"),
        ({"text_2": None}, "text_2"),
        ({"text_2": []}, "text_2"),
        ({"text_1": 5}, "text_1"),
        ({"text_1": ["a", "b"]}, None),
    ],
    ids=named,
)
async def test_a_wrong_score_is_refused(target: Target, model: str, fields: Any, param: str | None) -> None:
    body = {"model": model, "text_1": "water", "text_2": DOCUMENTS, **fields}
    refused(await target.post(SCORE[0], body), 400, None if param is None else ("text", "queries"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": None}, "query"),
        ({"query": 5}, "query"),
        ({"documents": None}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": [5]}, "documents"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": "x"}, "top_n"),
    ],
    ids=named,
)
async def test_a_wrong_ranking_is_refused_and_named(target: Target, model: str, fields: Any, param: str) -> None:
    body = {"model": model, "query": "water", "documents": DOCUMENTS, **fields}
    refused(await target.post(RERANK[0], body), 400, param)


@pytest.mark.parametrize(
    ("fields", "param"), [({"input": None}, "input"), ({"input": []}, "input"), ({"input": 5}, "input")], ids=named
)
async def test_a_wrong_text_is_refused_and_named(target: Target, classifier: str, fields: Any, param: str) -> None:
    refused(await target.post(CLASSIFY, {"model": classifier, "input": "one", **fields}), 400, param)


async def test_an_unknown_model_is_not_found(target: Target, model: str) -> None:
    scored, ranked = {"text_1": "a", "text_2": "b"}, {"query": "a", "documents": ["b"]}
    for path in (*SCORE, *RERANK):
        body = {"model": "no-such-model", **(scored if path in SCORE else ranked)}
        refused(await target.post(path, body), 404)


async def test_a_model_that_embeds_makes_no_text(target: Target, model: str) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = target.chat(model=model) if "chat" in path else target.text(model=model)
        refused(await target.post(path, body), (400, 404))
