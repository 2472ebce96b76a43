"""Bodies of errors: the same form on every endpoint, whatever is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.target import MARKS, Reply, Target, refused

pytestmark = MARKS

ENDPOINTS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/embeddings", "/score", "/rerank", "/classify", "/tokenize", "/detokenize", "/v1/batches",
)  # fmt: skip
OPENAI_TYPES = {
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "rate_limit_error",
    "server_error",
}  # fmt: skip
each_endpoint = pytest.mark.parametrize("path", ENDPOINTS)


def checked(target: Target, path: str, reply: Reply, status: int | tuple[int, ...]) -> None:
    """Check an error's form: Anthropic's for its endpoints, OpenAI's for all others."""
    if reply.status in (404, 405, 501) and not target.complete and status != 404:
        pytest.skip(f"the server has no {path}")
    if not path.startswith("/v1/messages"):
        error = refused(reply, status)
        assert error["type"] in OPENAI_TYPES
        assert error["code"] is None or isinstance(error["code"], str)
        return
    assert reply.status in ((status,) if isinstance(status, int) else status), reply.body
    assert reply.headers["content-type"].startswith("application/json")
    found = reply.json
    assert found["type"] == "error"
    assert isinstance(found["error"]["message"], str)
    assert found["error"]["type"].endswith("_error") or found["error"]["type"] == "request_too_large"


@each_endpoint
@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff\xfe"], ids=["half", "list", "no_utf8"])
async def test_a_body_that_is_no_object(target: Target, path: str, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    checked(target, path, await target.call("POST", path, data=body, headers=headers), (400, 422))


@each_endpoint
async def test_a_body_of_another_type(target: Target, path: str) -> None:
    reply = await target.call("POST", path, data=b"model=demo", headers={"content-type": "text/plain"})
    checked(target, path, reply, (400, 415, 422))


@each_endpoint
async def test_an_empty_object(target: Target, path: str) -> None:
    checked(target, path, await target.post(path, {}), (400, 422))


@each_endpoint
@pytest.mark.parametrize("model", [5, [], {}, True], ids=str)
async def test_a_model_that_is_no_text(target: Target, path: str, model: Any) -> None:
    if path == "/v1/batches":
        pytest.skip("a batch has its models in its file")
    checked(target, path, await target.post(path, {**valid(target, path), "model": model}), (400, 422))


@each_endpoint
async def test_a_model_that_nobody_serves(target: Target, path: str) -> None:
    if path == "/v1/batches":
        pytest.skip("a batch has its models in its file")
    reply = await target.post(path, {**valid(target, path), "model": "no-such-model"})
    if reply.json == {"detail": "Not Found"} and not target.complete:
        pytest.skip(f"the server has no {path}")
    checked(target, path, reply, 404)


@each_endpoint
async def test_another_method(target: Target, path: str) -> None:
    reply = await target.call("PATCH", path)
    if reply.status == 404 and not target.complete:
        pytest.skip(f"the server has no {path}")
    assert reply.status == 405
    if path.startswith("/v1/messages"):
        assert reply.json["type"] == "error"
    else:
        refused(reply, 405)


@pytest.mark.parametrize("path", ["/v1/chat", "/V1/models", "/v1//models", "/%00", "/v1/\u00e4"])
async def test_a_path_that_nobody_serves(target: Target, path: str) -> None:
    refused(await target.call("GET", path), 404)


@each_endpoint
async def test_an_error_names_its_request(target: Target, path: str) -> None:
    reply = await target.post(path, {}, headers={"x-request-id": "mine-8"})
    if reply.status in (404, 405) and not target.complete:
        pytest.skip(f"the server has no {path}")
    assert reply.headers["x-request-id"] == "mine-8"
    if path.startswith("/v1/messages"):
        assert reply.json["request_id"] == reply.headers["request-id"] == "mine-8"


def valid(target: Target, path: str) -> dict[str, Any]:
    """Build a body that the endpoint takes."""
    ask = [{"role": "user", "content": "x"}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": ask, "max_tokens": 1},
        "/v1/completions": {"prompt": "x", "max_tokens": 1},
        "/v1/responses": {"input": "x", "max_output_tokens": 16},
        "/v1/messages": {"messages": ask, "max_tokens": 1},
        "/v1/messages/count_tokens": {"messages": ask},
        "/score": {"text_1": "x", "text_2": "y"},
        "/rerank": {"query": "x", "documents": ["y"]},
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [1]},
    }
    return {"model": target.model, **bodies.get(path, {"input": "x"})}
