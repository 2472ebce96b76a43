"""Batches of requests for vectors."""

from __future__ import annotations

import base64
import json
from array import array
from pathlib import Path

import openai
import pytest

from tests.router.embeddings.conftest import VECTOR_SIZE, pool
from tests.router.http.files.support import CHAT, HTTP, base, content, line, run
from tests.support.stack import running_stack, sim_pool

pytestmark = pytest.mark.asyncio(loop_scope="module")

VECTORS = "/v1/embeddings"


def texts(number: int, **body: object) -> str:
    """Build a line that asks for the vectors of two texts."""
    whole = {"model": "vectors", "input": [f"text {number}", "and another"], **body}
    return json.dumps({"custom_id": f"q{number}", "method": "POST", "url": VECTORS, "body": whole})


async def test_a_batch_of_vectors(tmp_path: Path) -> None:
    pools = {"texts": sim_pool(), "vectors": pool("embed")}
    async with (
        running_stack(tmp_path, router=HTTP, pools=pools) as stack,
        openai.AsyncOpenAI(base_url=f"{base(stack)}/v1", api_key="none", max_retries=0) as client,
    ):
        batch = await run(client, [texts(number) for number in range(20)], VECTORS)
        assert (batch.status, batch.error_file_id) == ("completed", None)
        found = await content(client, batch.output_file_id)
        assert {each["custom_id"] for each in found} == {f"q{number}" for number in range(20)}
        body = found[0]["response"]["body"]
        assert [(each["object"], each["index"], len(each["embedding"])) for each in body["data"]] == [
            ("embedding", 0, VECTOR_SIZE),
            ("embedding", 1, VECTOR_SIZE),
        ]
        assert body["usage"]["prompt_tokens"] > 0
        # As the endpoint's own answers have them.
        assert f"embd-{found[0]['response']['request_id']}" == body["id"]
        assert body["created"] > 0
        file = await client.files.retrieve(batch.output_file_id or "")
        assert file.bytes == len((await client.files.content(file.id)).content)

        # The same vectors in the other form, and in both forms in one file.
        packed = await run(client, [texts(0, encoding_format="base64"), texts(1, encoding_format="float")], VECTORS)
        bodies = {
            each["custom_id"]: each["response"]["body"]["data"] for each in await content(client, packed.output_file_id)
        }
        first = next(each["response"]["body"]["data"] for each in found if each["custom_id"] == "q0")
        for plain, each in zip(first, bodies["q0"], strict=True):
            assert plain["embedding"] == list(array("f", base64.b64decode(each["embedding"])))
        assert VECTOR_SIZE == len(bodies["q1"][0]["embedding"])
        file = await client.files.retrieve(packed.output_file_id or "")
        assert file.bytes == len((await client.files.content(file.id)).content)

        # A key counts in all pools.
        keyed = {"Idempotency-Key": "nightly"}
        first = await run(client, [texts(0)], VECTORS, extra_headers=keyed)
        with pytest.raises(openai.ConflictError) as caught:
            await run(client, [line(0, CHAT, model="texts")], CHAT, extra_headers=keyed)
        assert first.id.removeprefix("batch_") in caught.value.message

        # Lines of two endpoints, and fields that are wrong.
        for lines, endpoint, params in (
            ([texts(0), line(1, CHAT, model="vectors")], VECTORS, ["url", "body.model"]),
            ([texts(0, encoding_format="hex")], VECTORS, ["body.encoding_format"]),
            ([texts(0, input=[])], VECTORS, ["body.input"]),
            # A model with another task.
            ([texts(0, model="texts")], VECTORS, ["body.model"]),
            ([line(1, CHAT, model="vectors")], CHAT, ["body.model"]),
        ):
            failed = await run(client, lines, endpoint)
            assert failed.errors is not None
            assert (failed.status, [each.param for each in failed.errors.data or []]) == ("failed", params)
