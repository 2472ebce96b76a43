"""Batches and files whose store does their work and does not answer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import openai
import pytest

from cluster.errors import QueueUnavailableError
from tests.router.http.files.support import CHAT, file_of, line
from tests.support.stack import Stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize(("step", "missed"), [("append", 2), ("keep", 1)])
async def test_a_short_absence_of_the_store_ends_no_upload(
    stack: Stack, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, step: str, missed: int, done: bool
) -> None:
    store = stack.routers[0]._parts.jobs.stores.served["demo"]
    work, calls = getattr(store, step), 0

    async def flaky(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == missed:
            if done:
                await work(*arguments)
            raise QueueUnavailableError("away")
        return await work(*arguments)

    monkeypatch.setattr(store, step, flaky)
    lines = [line(number) for number in range(200)]
    file = await client.files.create(file=file_of(lines), purpose="batch")
    assert calls > missed
    assert (await client.files.content(file.id)).content == file_of(lines)[1]


async def test_an_upload_that_an_outage_refuses_is_left_to_the_sweep(
    stack: Stack, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients try again, and each try would wait here with its block until Redis is back."""
    store, tried = stack.routers[0]._parts.jobs.stores.served["demo"], list[str]()

    async def away(job_id: str, *_: Any) -> None:
        tried.append(job_id)
        raise QueueUnavailableError("away")

    monkeypatch.setattr(store, "create", away)
    monkeypatch.setattr(store, "delete", away)
    with pytest.raises(openai.InternalServerError):
        await client.files.create(file=file_of([line(0)]), purpose="batch")
    await until(lambda: len(tried) >= 2)
    await until(lambda: all(task.get_name() != "files.drop" for task in asyncio.all_tasks()))


@pytest.mark.parametrize("key", ["", "mine"])
async def test_a_batch_that_is_sent_again_because_redis_did_not_answer_is_there_once(
    stack: Stack, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    store = stack.routers[0]._parts.jobs.stores.served["demo"]
    begin, delete, answered = store.begin, store.delete, list[str]()

    async def without_answer(step: Any, *arguments: Any) -> Any:
        found = await step(*arguments)
        if step.__name__ not in answered:
            answered.append(step.__name__)
            raise QueueUnavailableError("no answer", 0.01)
        return found

    monkeypatch.setattr(store, "begin", partial(without_answer, begin))
    monkeypatch.setattr(store, "delete", partial(without_answer, delete))
    file = await client.files.create(file=file_of([line(0)]), purpose="batch")
    batch = await client.with_options(max_retries=2).batches.create(
        input_file_id=file.id,
        endpoint=CHAT,
        completion_window="24h",
        extra_headers={"Idempotency-Key": key} if key else {},
    )
    assert "begin" in answered

    async def here() -> list[str]:
        return [each.id for each in (await client.batches.list()).data if each.input_file_id == file.id]

    async def once() -> bool:
        return await here() == [batch.id]

    await until(once)
