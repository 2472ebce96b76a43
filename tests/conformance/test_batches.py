"""Files and batches."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types import Batch
from openai.types.chat import ChatCompletion

from tests.conformance.target import CHAT, MARKS, Target, named, refused

pytestmark = MARKS
ENDPOINT = ("GET", "/v1/files")
END_S = 60


def lines(target: Target) -> bytes:
    """Build a batch of two requests."""
    return b"".join(
        json.dumps({"custom_id": f"q{number}", "method": "POST", "url": CHAT, "body": body}).encode() + b"\n"
        for number, body in enumerate([target.chat(), target.chat(max_tokens=2)])
    )


async def test_a_file_comes_back_is_listed_and_deleted(target: Target, sdk: openai.AsyncOpenAI) -> None:
    file = await sdk.files.create(file=("in.jsonl", lines(target)), purpose="batch")
    assert (file.object, file.filename, file.bytes) == ("file", "in.jsonl", len(lines(target)))
    assert (await sdk.files.content(file.id)).content == lines(target)
    assert file.id in [each.id async for each in sdk.files.list()]
    assert (await sdk.files.delete(file.id)).deleted
    refused(await target.call("GET", f"/v1/files/{file.id}"), 404)


async def ended(target: Target, sdk: openai.AsyncOpenAI, data: bytes) -> Batch:
    """Run a batch to its end."""
    file = await sdk.files.create(file=("in.jsonl", data), purpose="batch")
    batch: Batch = await sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    async with asyncio.timeout(END_S):
        while batch.status in ("validating", "in_progress", "finalizing"):
            await asyncio.sleep(0.05)
            batch = await sdk.batches.retrieve(batch.id)
    return batch


async def test_a_batch_answers_every_line(target: Target, sdk: openai.AsyncOpenAI) -> None:
    batch = await ended(target, sdk, lines(target))
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (2, 2, 0)
    assert batch.output_file_id is not None
    found = [json.loads(each) for each in (await sdk.files.content(batch.output_file_id)).text.splitlines()]
    assert {each["custom_id"] for each in found} == {"q0", "q1"}
    for each in found:
        assert each["response"]["status_code"] == 200
        ChatCompletion.model_validate(each["response"]["body"], strict=True)
    assert batch.id in [each.id async for each in sdk.batches.list()]


async def test_a_file_that_is_no_batch_fails_with_its_lines(target: Target, sdk: openai.AsyncOpenAI) -> None:
    batch = await ended(target, sdk, lines(target) + b"{nonsense\n")
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [each.line for each in batch.errors.data or ()] == [3]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files/file-none"),
        ("DELETE", "/v1/files/file-none"),
        ("GET", "/v1/files/file-none/content"),
        ("GET", "/v1/batches/batch_none"),
        ("POST", "/v1/batches/batch_none/cancel"),
    ],
)
async def test_what_is_unknown_is_not_found(target: Target, method: str, path: str) -> None:
    refused(await target.call(method, path), 404)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input_file_id": "file-none"}, (400, 404), None),
        ({"input_file_id": None}, 400, "input_file_id"),
        ({"endpoint": "/v1/nothing"}, 400, "endpoint"),
        ({"completion_window": "soon"}, 400, "completion_window"),
        ({"metadata": 5}, 400, "metadata"),
    ],
    ids=named,
)
async def test_a_wrong_batch_is_refused(target: Target, fields: Any, status: Any, param: str | None) -> None:
    body = {"input_file_id": "file-none", "endpoint": CHAT, "completion_window": "24h", **fields}
    refused(await target.post("/v1/batches", body), status, param)


@pytest.mark.parametrize(
    "form", [b"", b"--x", b'--x\r\nContent-Disposition: form-data; name="\x1a"\r\n\r\n{}\r\n--x--\r\n']
)
async def test_a_broken_form_is_refused(target: Target, form: bytes) -> None:
    headers = {"content-type": "multipart/form-data; boundary=x"}
    refused(await target.call("POST", "/v1/files", data=form, headers=headers), (400, 422))
