"""Batches of requests for vectors."""

from __future__ import annotations

import json
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
        file = await client.files.retrieve(batch.output_file_id or "")
        assert file.bytes == len((await client.files.content(file.id)).content)

        # Lines of two endpoints, and a field that a batch can't honour.
        for lines, endpoint, param in (
            ([texts(0), line(1, CHAT, model="vectors")], VECTORS, "url"),
            ([texts(0, encoding_format="base64")], VECTORS, "body.encoding_format"),
            ([texts(0, input=[])], VECTORS, "body.input"),
        ):
            failed = await run(client, lines, endpoint)
            assert failed.errors is not None
            assert (failed.status, [each.param for each in failed.errors.data or []]) == ("failed", [param])
