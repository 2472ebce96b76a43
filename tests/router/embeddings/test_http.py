"""OpenAI's SDK, and bodies as vLLM's server takes them, against a real router with simulated engines."""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio

from penstock import AsyncClient
from router.validation.pooling import MAX_INPUTS, MAX_REQUEST_TOKENS
from tests.router.embeddings.conftest import CONTEXT, VECTOR_SIZE
from tests.support.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def base(stack: Stack) -> str:
    http = stack.routers[0].http
    assert http is not None
    return f"http://127.0.0.1:{http.port}"


@pytest_asyncio.fixture(loop_scope="module")
async def sdk(base: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as found:
        yield found


async def post(base: str, path: str, body: dict[str, Any]) -> tuple[int, Any, Any]:
    async with aiohttp.ClientSession() as session, session.post(base + path, json=body) as reply:
        return reply.status, await reply.json(), reply.headers


async def test_the_sdk_gets_the_vectors_that_the_client_gets(sdk: openai.AsyncOpenAI, client: AsyncClient) -> None:
    texts = ["one text", "another text"]
    wanted = (await client.embed("vectors", texts)).vectors
    # Without an encoding the SDK asks for base64, and decodes it.
    by_default = await sdk.embeddings.create(model="vectors", input=texts)
    as_numbers = await sdk.embeddings.create(model="vectors", input=texts, encoding_format="float", user="somebody")
    assert [list(each) for each in wanted] == [each.embedding for each in by_default.data]
    assert [list(each) for each in wanted] == [each.embedding for each in as_numbers.data]
    assert [0, 1] == [each.index for each in by_default.data]
    assert by_default.usage.prompt_tokens == by_default.usage.total_tokens > 0


async def test_base64_is_the_vector_in_float32(base: str) -> None:
    asked = {"model": "vectors", "input": "some text"}
    _, packed, _ = await post(base, "/v1/embeddings", {**asked, "encoding_format": "base64"})
    _, plain, _ = await post(base, "/v1/embeddings", asked)
    data = base64.b64decode(packed["data"][0]["embedding"])
    assert plain["data"][0]["embedding"] == list(struct.unpack(f"<{VECTOR_SIZE}f", data))


async def test_vectors_have_an_id_as_all_other_answers(base: str) -> None:
    """The server of vLLM gives it, and the SDKs of some vendors want it."""
    _, found, headers = await post(base, "/v1/embeddings", {"model": "vectors", "input": "some text"})
    assert found["id"] == f"embd-{headers['x-request-id']}"
    assert found["created"] > 0


async def test_every_form_of_an_input_gives_the_same_vector(base: str, client: AsyncClient) -> None:
    ids = list((await client.count_tokens("vectors", "some text")).token_ids)
    found = []
    for form in ("some text", ["some text"], ids, [ids]):
        status, answer, _ = await post(base, "/v1/embeddings", {"model": "vectors", "input": form})
        assert 200 == status, answer
        found.append(answer["data"])
    assert [found[0]] * 4 == found


async def test_fewer_dimensions_are_a_cut_of_the_vector_with_length_1(sdk: openai.AsyncOpenAI) -> None:
    found = await sdk.embeddings.create(model="vectors", input="some text", dimensions=4)
    assert 4 == len(found.data[0].embedding)
    assert pytest.approx(1.0, abs=1e-6) == sum(number * number for number in found.data[0].embedding)


@pytest.mark.parametrize(
    ("more", "field", "problem"),
    [
        ({"input": []}, "input", "at least 1 entry"),
        ({"input": ["a", 5]}, "input[1]", "text or token ids"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "float or base64"),
        ({"input": "a", "dimensions": VECTOR_SIZE + 1}, "dimensions", f"at most {VECTOR_SIZE}"),
        ({"input": ["a", "word " * 2 * CONTEXT]}, "input[1]", f"maximum context length is {CONTEXT} tokens"),
        ({"input": [[5, 10**6]]}, "input[0][1]", "vocabulary"),
        ({"input": [5, 10**6]}, "input[1]", "vocabulary"),
        ({"input": "word " * 2 * CONTEXT}, "input", f"maximum context length is {CONTEXT} tokens"),
        ({"input": [5] * (CONTEXT + 1)}, "input", f"maximum context length is {CONTEXT} tokens"),
        ({"input": ["word " * 2 * CONTEXT]}, "input[0]", f"maximum context length is {CONTEXT} tokens"),
        ({"input": [5, -1]}, "input[1]", "must be at least 0, got -1"),
        ({"input": [[5], [5, 2**32]]}, "input[1][1]", f"must be at most {2**32 - 1}, got {2**32}"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1"),
        ({"input": "a b c", "truncate_prompt_tokens": 1}, "truncate_prompt_tokens", "must be at least 2"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "or at least 1, got -2"),
        ({"input": "a", "dimensions": -1}, "dimensions", "must be at least 1, got -1"),
        ({"input": ["a"] * 2049}, "input", "1 to 2048"),
    ],
)
async def test_a_wrong_field_is_named(base: str, more: dict[str, Any], field: str, problem: str) -> None:
    status, answer, _ = await post(base, "/v1/embeddings", {"model": "vectors", **more})
    assert (400, field) == (status, answer["error"]["param"]), answer
    assert problem in answer["error"]["message"]


async def test_a_pool_that_generates_is_refused_by_name(base: str) -> None:
    status, answer, _ = await post(base, "/v1/embeddings", {"model": "texts", "input": "a"})
    assert (400, "model") == (status, answer["error"]["param"])
    chat = {"model": "vectors", "messages": [{"role": "user", "content": "a"}]}
    status, answer, _ = await post(base, "/v1/chat/completions", chat)
    assert (400, "model") == (status, answer["error"]["param"])


async def test_a_text_that_is_too_long_is_cut_where_that_is_asked_for(base: str) -> None:
    asked = {"model": "vectors", "input": "word " * 2 * CONTEXT, "truncate_prompt_tokens": -1}
    status, answer, _ = await post(base, "/v1/embeddings", asked)
    assert (200, CONTEXT) == (status, answer["usage"]["prompt_tokens"])


async def test_a_cut_that_leaves_no_token_of_a_text_is_refused(base: str) -> None:
    """A pair has more special tokens than a text."""
    asked = {"model": "pairs", "query": "a b c", "documents": ["d e f"]}
    for most, status, problem in ((2, 400, "must be at least 3"), (3, 200, "")):
        found, answer, _ = await post(base, "/rerank", {**asked, "truncate_prompt_tokens": most})
        assert found == status, answer
        if problem:
            assert "truncate_prompt_tokens" == answer["error"]["param"]
            assert problem in answer["error"]["message"]
        else:
            assert most == answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("model", ["vectors", "pairs"])
async def test_a_ranking_has_the_best_documents_first(base: str, path: str, model: str) -> None:
    documents = ["red apples", "the weather in spring", "the weather today"]
    body = {"model": model, "query": "the weather today", "documents": documents}
    _, whole, _ = await post(base, path, body)
    status, top, _ = await post(base, path, {**body, "top_n": 2})
    scores = [each["relevance_score"] for each in whole["results"]]
    assert sorted(scores, reverse=True) == scores
    assert [0, 1, 2] == sorted(each["index"] for each in whole["results"])
    assert (200, whole["results"][:2]) == (status, top["results"])
    assert all(documents[each["index"]] == each["document"]["text"] for each in whole["results"])
    if model == "vectors":
        assert 2 == whole["results"][0]["index"]
        assert pytest.approx(1.0, abs=1e-6) == scores[0]


@pytest.mark.parametrize(
    ("given", "more", "refused"),
    [
        (("queries", "documents"), ("text_1", "text_2"), "text_1: must be absent beside queries and documents"),
        (("queries", "documents"), ("text_1",), "text_1: must be absent beside queries and documents"),
        (("text_1", "text_2"), ("data_1", "data_2"), "data_1: must be absent beside text_1 and text_2"),
        (("queries", "documents"), ("items",), "items: must be absent beside queries and documents"),
        (("queries",), ("text_2",), "text_2: must be absent beside queries"),
    ],
)
async def test_no_pair_of_texts_is_dropped_in_silence(
    base: str, given: tuple[str, ...], more: tuple[str, ...], refused: str
) -> None:
    texts = dict.fromkeys(given, "one") | dict.fromkeys(more, "two")
    status, answer, _ = await post(base, "/v1/score", {"model": "vectors", **texts})
    assert (400, refused.partition(":")[0]) == (status, answer["error"]["param"])
    assert answer["error"]["message"].startswith(refused)


@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_scores_come_in_the_order_of_the_documents(base: str, path: str, names: tuple[str, str]) -> None:
    body = {"model": "vectors", names[0]: "one text", names[1]: ["one text", "other words"]}
    status, answer, _ = await post(base, path, body)
    assert 200 == status, answer
    assert [0, 1] == [each["index"] for each in answer["data"]]
    assert pytest.approx(1.0, abs=1e-6) == answer["data"][0]["score"]
    assert answer["data"][1]["score"] < 0.999


@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
async def test_wrong_scores_are_told_the_names_that_the_body_has(base: str, names: tuple[str, str]) -> None:
    body = {"model": "vectors", names[0]: ["one", "two"], names[1]: ["a", "b", "c"]}
    status, answer, _ = await post(base, "/v1/score", body)
    assert (400, names[0]) == (status, answer["error"]["param"])
    _, answer, _ = await post(base, "/v1/score", {**body, names[0]: "one", "use_activation": True})
    assert "use_activation" == answer["error"]["param"]
    _, answer, _ = await post(base, "/v1/score", {"model": "vectors", names[1]: "one"})
    assert names[0] == answer["error"]["param"]


@pytest.mark.parametrize("names", [("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2")])
async def test_texts_that_are_too_long_together_are_named_as_the_body_does(base: str, names: tuple[str, str]) -> None:
    texts = ["a " * 150] * (MAX_INPUTS // 2)
    status, answer, _ = await post(base, "/v1/score", {"model": "vectors", names[0]: texts, names[1]: texts})
    assert (400, names[1]) == (status, answer["error"]["param"]), answer
    assert f"at most {MAX_REQUEST_TOKENS} tokens together" in answer["error"]["message"]


LONG_TEXT = "word " * 2 * CONTEXT


@pytest.mark.parametrize(
    ("path", "model", "more", "field"),
    [
        ("/v1/score", "vectors", {"text_1": LONG_TEXT, "text_2": ["a", "b"]}, "text_1"),
        ("/v1/score", "vectors", {"text_1": "a", "text_2": LONG_TEXT}, "text_2"),
        ("/v1/score", "vectors", {"queries": [LONG_TEXT], "items": ["a", "b"]}, "queries[0]"),
        ("/v1/score", "vectors", {"queries": ["a"], "items": ["a", LONG_TEXT]}, "items[1]"),
        ("/v1/score", "pairs", {"text_1": LONG_TEXT, "text_2": ["a", "b"]}, "text_1"),
        ("/v1/score", "pairs", {"text_1": ["a", LONG_TEXT], "text_2": ["a", "b"]}, "text_1[1]"),
        ("/v1/score", "pairs", {"text_1": "a", "text_2": ["a", LONG_TEXT]}, "text_2[1]"),
        ("/rerank", "pairs", {"query": LONG_TEXT, "documents": ["a", "b"]}, "query"),
        ("/rerank", "pairs", {"query": "a", "documents": ["a", LONG_TEXT]}, "documents[1]"),
    ],
)
async def test_a_text_that_is_too_long_is_named_as_the_body_does(
    base: str, path: str, model: str, more: dict[str, Any], field: str
) -> None:
    """Of a pair, too: it is the query where that alone leaves no room."""
    status, answer, _ = await post(base, path, {"model": model, **more})
    assert (400, field) == (status, answer["error"]["param"]), answer
    assert f"maximum context length is {CONTEXT} tokens" in answer["error"]["message"]
    assert 1 == answer["error"]["message"].count("maximum context length"), answer


async def test_texts_of_classes_are_named_as_the_body_does(base: str) -> None:
    for form, field in (("word " * 2 * CONTEXT, "input"), (["a", "word " * 2 * CONTEXT], "input[1]")):
        _, answer, _ = await post(base, "/classify", {"model": "classes", "input": form})
        assert field == answer["error"]["param"], answer


async def test_classes_have_names_and_probabilities(base: str) -> None:
    status, answer, headers = await post(base, "/classify", {"model": "classes", "input": ["a", "b"], "nobody": 1})
    assert 200 == status, answer
    for each in answer["data"]:
        assert 3 == each["num_classes"] == len(each["probs"])
        assert pytest.approx(1.0, abs=1e-5) == sum(each["probs"])
        assert f"LABEL_{each['probs'].index(max(each['probs']))}" == each["label"]
    assert "nobody" == headers["x-penstock-ignored"]


async def test_models_tell_their_task(base: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{base}/v1/models") as reply:
        tasks = {each["id"]: each["task"] for each in (await reply.json())["data"]}
    assert {"texts": "generate", "vectors": "embed", "classes": "classify", "pairs": "classify"} == tasks
