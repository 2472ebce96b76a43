"""Batches of responses: their lines are read as /v1/responses reads a body, and answered as it answers."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests.router.http.files.support import content, ended, file_of, line, run

pytestmark = pytest.mark.asyncio(loop_scope="module")

URL: Any = "/v1/responses"


def asked(number: int, **body: Any) -> str:
    whole = {"model": "demo", "input": f"Question {number}?", "max_output_tokens": 2, "ignore_eos": True, **body}
    return json.dumps({"custom_id": f"q{number}", "method": "POST", "url": URL, "body": whole})


async def test_a_result_is_a_response_that_repeats_its_request(client: openai.AsyncOpenAI) -> None:
    more: dict[str, Any] = {"instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5}
    batch = await run(client, [asked(0), asked(1, **more)], URL)
    assert (batch.status, batch.endpoint) == ("completed", URL)
    found = {each["custom_id"]: each["response"] for each in await content(client, batch.output_file_id)}
    assert {each["status_code"] for each in found.values()} == {200}
    body = found["q1"]["body"]
    response = Response.model_validate(body, strict=False)
    assert response.id.startswith("resp_")
    assert response.output_text
    assert (response.status, response.incomplete_details and response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert (response.instructions, response.metadata, response.temperature) == ("Be brief.", {"a": "b"}, 0.5)
    assert response.usage is not None
    assert response.usage.output_tokens == 2
    assert body["store"] is False
    assert body["id"] != found["q0"]["body"]["id"]


async def test_a_result_reads_the_same_every_time_and_its_file_has_the_size_that_is_told(
    client: openai.AsyncOpenAI, other: openai.AsyncOpenAI
) -> None:
    batch = await run(client, [asked(number) for number in range(3)], URL)
    assert await content(client, batch.output_file_id) == await content(other, batch.output_file_id)
    assert batch.output_file_id is not None
    told = await client.files.retrieve(batch.output_file_id)
    assert told.bytes == len((await client.files.content(told.id)).content)


async def test_the_answer_is_that_of_a_call(client: openai.AsyncOpenAI) -> None:
    same: dict[str, Any] = {"temperature": 0, "max_output_tokens": 4}
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
    ]
    batch = await run(client, [asked(0, input=history, **same)], URL)
    [found] = await content(client, batch.output_file_id)
    called = await client.responses.create(
        model="demo",
        input=history,
        store=False,
        extra_body={"ignore_eos": True},
        **same,  # type: ignore[arg-type]
    )
    assert Response.model_validate(found["response"]["body"], strict=False).output_text == called.output_text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "body.previous_response_id"),
        ({"background": True}, "body.background"),
        ({"truncation": "auto"}, "body.truncation"),
        ({"stream": True}, "body.stream"),
        ({"store": True}, "body.store"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "body.input[0]"),
        ({"input": 3}, "body.input"),
        ({"max_output_tokens": "x"}, "body.max_output_tokens"),
        ({"temperature": 9}, "body.temperature"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": 3}}}, "body.text.format.schema"),
        ({"model": ""}, "body.model"),
    ],
)
async def test_what_a_batch_can_not_do_is_named_with_line_and_field(
    client: openai.AsyncOpenAI, body: dict[str, Any], param: str
) -> None:
    batch = await run(client, [asked(0), asked(1, **body)], URL)
    assert batch.status == "failed"
    assert batch.errors is not None
    [error] = batch.errors.data or []
    assert (error.line, error.param) == (2, param)


async def test_lines_of_another_endpoint_fail_the_batch(client: openai.AsyncOpenAI) -> None:
    file = await client.files.create(file=file_of([asked(0), line(1)]), purpose="batch")
    batch = await client.batches.create(input_file_id=file.id, endpoint=URL, completion_window="24h")
    done = await ended(client, batch.id)
    assert done.errors is not None
    assert [(error.line, error.param) for error in done.errors.data or []] == [(2, "url")]
