"""Batches of responses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests.conformance.target import CHAT, MARKS, Target

pytestmark = MARKS
ENDPOINT = ("GET", "/v1/files")
URL: Any = "/v1/responses"
END_S = 60


async def test_each_line_is_answered_with_a_response(target: Target, sdk: openai.AsyncOpenAI) -> None:
    body = {"model": target.model, "input": "What is a penstock?", "max_output_tokens": 16}
    lines = [
        json.dumps({"custom_id": f"q{number}", "method": "POST", "url": URL, "body": {**body, **more}}).encode()
        for number, more in enumerate([{}, {"instructions": "Be brief.", "metadata": {"a": "b"}}])
    ]
    file = await sdk.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
    try:
        batch = await sdk.batches.create(input_file_id=file.id, endpoint=URL, completion_window="24h")
    except openai.BadRequestError:
        pytest.skip(f"the server has no batches of {URL}, only such as {CHAT}")
    async with asyncio.timeout(END_S):
        while batch.status in ("validating", "in_progress", "finalizing"):
            await asyncio.sleep(0.05)
            batch = await sdk.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert batch.output_file_id is not None
    found = [json.loads(each) for each in (await sdk.files.content(batch.output_file_id)).text.splitlines()]
    assert {each["custom_id"] for each in found} == {"q0", "q1"}
    for each in found:
        assert (each["response"]["status_code"], each["error"]) == (200, None)
        response = Response.model_validate(each["response"]["body"], strict=True)
        assert response.output_text
        if each["custom_id"] == "q1":
            assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})
