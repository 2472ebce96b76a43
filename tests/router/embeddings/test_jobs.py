"""Requests for vectors as items of jobs and of batches."""

from __future__ import annotations

import json

import pytest

from penstock import AsyncClient, EmbedItem, InvalidArgumentError, JobItem, PoolingOptions, RequestClass, read_batch
from penstock.batch.output import result_object

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_items_of_a_job_get_the_vectors_that_a_call_gets(client: AsyncClient) -> None:
    items = [EmbedItem(f"item-{number}", [f"text {number}", f"other {number}"]) for number in range(40)]
    job = await client.submit_job("vectors", items)
    found = {}
    async for update in client.watch_job(job.job_id):
        found |= {result.custom_id: result for result in update.results}
        job = update.job
    assert (40, 0) == (job.succeeded_items, job.failed_items)
    assert job.usage.prompt_tokens > 0 == job.usage.output_tokens
    for number in (0, 39):
        wanted = await client.embed("vectors", items[number].inputs)
        result = found[f"item-{number}"]
        assert result.completion is None
        assert result.embeddings is not None
        assert wanted.vectors == result.embeddings.vectors


async def test_a_wrong_item_is_named_before_the_job_is_stored(client: AsyncClient) -> None:
    with pytest.raises(InvalidArgumentError, match=r"items\[1\]\.embed\.inputs.* 1 to 2048 entries"):
        await client.submit_job("vectors", [EmbedItem("a", "fine"), EmbedItem("b", [])])
    late = PoolingOptions(queue_timeout=5, request_class=RequestClass.INTERACTIVE)
    with pytest.raises(InvalidArgumentError, match="belongs to the job"):
        await client.submit_job("vectors", [EmbedItem("a", "fine", options=late)])


@pytest.mark.parametrize(
    ("model", "items", "problem"),
    [
        ("vectors", [EmbedItem("a", "hello"), JobItem("b", "hello")], r"items\[1\]\.request: .*'generate'.*'embed'"),
        ("texts", [EmbedItem("a", "hello")], r"items\[0\]\.embed: .*'embed'.*'generate'.*custom_id 'a'"),
        ("classes", [EmbedItem("a", "hello")], r"items\[0\]\.embed: .*'embed'.*'classify'"),
    ],
    ids=["generates", "embeds", "embeds-for-classes"],
)
async def test_an_item_for_a_pool_with_another_task_is_named_before_the_job_is_stored(
    client: AsyncClient, model: str, items: list[EmbedItem | JobItem], problem: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        await client.submit_job(model, items)


async def test_a_batch_file_with_embeddings_runs_as_a_job(client: AsyncClient) -> None:
    body = {"model": "vectors", "input": ["one", "two"], "dimensions": 4, "encoding_format": "float"}
    line = {"custom_id": "first", "method": "POST", "url": "/v1/embeddings", "body": body}
    batch = read_batch([json.dumps(line)])
    job = await client.submit_job(batch.model, batch.items)
    async for update in client.watch_job(job.job_id):
        for result in update.results:
            answer = result_object(job, result)["response"]["body"]
            assert [4, 4] == [len(each["embedding"]) for each in answer["data"]]
            assert "vectors" == answer["model"]
