"""Choices that wait know why, and what they waited adds up."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import router.dispatch.line_watch
from cluster.queue.redis.queue import RedisQueue
from penstock.v1 import admin_pb2, records_pb2
from penstock.wire import duration_from_wire
from router.generation.wait import WaitReason
from tests.support.keys import Keys, bearer
from tests.support.stack import Stack, collect, running_stack, stream_request
from tests.support.waiting import until


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys.toml")


def auth(keys: Keys) -> dict[str, Any]:
    return {"auth": {"keys_file": str(keys.path)}}


async def begin(stack: Stack, key: str, tokens: int) -> asyncio.Task[Any]:
    call = stack.inference().StreamGenerate(stream_request(max_tokens=tokens, ignore_eos=True), metadata=bearer(key))
    return asyncio.ensure_future(collect(call))


async def waiting(stack: Stack, count: int) -> None:
    pool = stack.routers[0].pools["demo"]
    await until(lambda: sum(choice.state.waits for choice in pool.choices.values()) == count)


async def looked_at(stack: Stack, count: int) -> None:
    """Wait until so many choices wait and the watch has looked at all of them."""

    def looked() -> bool:
        choices = stack.routers[0].pools["demo"].choices.values()
        seen = [choice.wait.ahead is not None for choice in choices if choice.state.waits]
        return len(seen) == count and all(seen)

    await until(looked)


async def test_nothing_is_asked_while_nothing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()
    real = RedisQueue.line

    async def counted(self: RedisQueue, ask: Any = ()) -> Any:
        asked.append(ask)
        return await real(self, ask)

    monkeypatch.setattr(RedisQueue, "line", counted)
    async with running_stack(tmp_path, sim={"max_num_seqs": 1, "base_ms": 5.0}) as stack:
        running = asyncio.ensure_future(
            collect(stack.inference().StreamGenerate(stream_request(max_tokens=20_000, ignore_eos=True)))
        )
        await until(lambda: stack.replicas[0].table.sequences == 1)
        # It waited for its place for a moment, in which a look may have come.
        asked.clear()
        await asyncio.sleep(0.6)
        assert [] == asked
        began = time.monotonic()
        late = asyncio.ensure_future(collect(stack.inference().StreamGenerate(stream_request(max_tokens=2))))
        await until(lambda: bool(asked))
        running.cancel()
        await late
        assert len(asked) <= 1 + (time.monotonic() - began) / router.dispatch.line_watch.ASK_S


async def test_the_parts_of_a_wait_add_up_to_it_and_say_who_was_ahead(tmp_path: Path, keys: Keys) -> None:
    async with running_stack(tmp_path, sim={"max_num_seqs": 1, "base_ms": 5.0}, sections=auth(keys)) as stack:
        first = await begin(stack, keys.other, 20_000)
        await until(lambda: stack.replicas[0].table.sequences == 1)
        ahead = [await begin(stack, keys.acme, 2) for _ in range(3)]
        await waiting(stack, 3)
        last = await begin(stack, keys.acme, 2)
        await waiting(stack, 4)
        await looked_at(stack, 4)
        # A look counts all time since the one before, so what comes at the end must be little of the whole.
        waits = list(stack.routers[0].pools["demo"].choices.values())[-1].wait
        await until(lambda: waits.parts.get(WaitReason.OWN_TENANT, 0.0) > 1.0)
        first.cancel()
        await asyncio.gather(*ahead)
        request_id = (await last)[-1].finished.request_id

        record = await explained(stack, keys.operator, request_id)
        [choice] = record.choices
        [attempt] = choice.attempts
        waited_s = duration_from_wire(attempt.granted_at) - duration_from_wire(attempt.waits_from)
        assert waited_s == pytest.approx(sum(duration_from_wire(part.time) for part in choice.waits), abs=0.002)
        assert records_pb2.WAIT_REASON_OWN_TENANT in {part.reason for part in choice.waits}
        assert ("acme", 3) == (choice.ahead[0].tenant, choice.ahead[0].waiting)
        assert {"acme", "other"} >= {each.tenant for each in choice.holders}
        assert sum(each.share for each in choice.holders) == pytest.approx(1.0)


async def test_a_tenant_learns_no_other_tenants_name(tmp_path: Path, keys: Keys) -> None:
    async with running_stack(tmp_path, sim={"max_num_seqs": 1, "base_ms": 5.0}, sections=auth(keys)) as stack:
        others = [await begin(stack, keys.other, tokens) for tokens in (20_000, 150)]
        await until(lambda: stack.replicas[0].table.sequences == 1)
        own_call = await begin(stack, keys.acme, 2)
        await looked_at(stack, 2)
        others.pop(0).cancel()
        request_id = (await own_call)[-1].finished.request_id
        asked = admin_pb2.ExplainRequest(request_id=request_id)
        await explained(stack, keys.acme, request_id)
        own = await stack.admin().Explain(asked, metadata=bearer(keys.acme))
        operators = await stack.admin().Explain(asked, metadata=bearer(keys.operator))
        listed = await stack.admin().ListRequests(admin_pb2.ListRequestsRequest(), metadata=bearer(keys.acme))

        assert "tenant other" in operators.summary
        assert "other" == operators.calls[0].choices[0].holders[0].tenant
        for found in (own, listed):
            assert 'tenant: "other"' not in str(found)
        assert "another tenant" in own.summary
        await asyncio.gather(*others)


async def test_operators_see_the_line_and_the_quotas(tmp_path: Path, keys: Keys) -> None:
    sections = {
        **auth(keys),
        "tenants": {"acme": {"weight": 2, "quota": {"concurrency": 2, "tokens_per_minute": 10_000}}},
    }
    async with running_stack(tmp_path, sim={"max_num_seqs": 1, "base_ms": 5.0}, sections=sections) as stack:
        first = await begin(stack, keys.acme, 5_000)
        await until(lambda: stack.replicas[0].table.sequences == 1)
        second = await begin(stack, keys.acme, 2)
        await waiting(stack, 1)
        with pytest.raises(Exception, match="may have 2 requests at once"):
            await (await begin(stack, keys.acme, 2))
        status = admin_pb2.GetClusterStatusResponse()

        async def all_is_told() -> bool:
            """The line that is shown is at most a second old, and what runs is what heartbeats have told."""
            asked = admin_pb2.GetClusterStatusRequest()
            status.CopyFrom(await stack.admin().GetClusterStatus(asked, metadata=bearer(keys.operator)))
            [pool] = status.pools
            return any(each.refused for each in pool.quotas) and any(each.running for each in pool.line)

        await until(all_is_told)
        [entry] = status.pools[0].line
        assert ("acme", 1, 1, 2.0) == (entry.tenant, entry.waiting, entry.running, entry.weight)
        [quota] = [each for each in status.pools[0].quotas if each.tenant == "acme"]
        assert ("concurrency", 2, 2, 1) == (quota.blocked_by, quota.concurrency, quota.open, quota.refused)
        assert 0 < quota.tokens_left < quota.tokens_per_minute == 10_000
        first.cancel()
        await second


async def explained(stack: Stack, key: str, request_id: str) -> Any:
    """Return the record of a call, as soon as it is there."""
    found = None

    async def there() -> bool:
        nonlocal found
        try:
            found = await stack.admin().Explain(
                admin_pb2.ExplainRequest(request_id=request_id), metadata=bearer(key) if key else ()
            )
        except Exception:  # noqa: BLE001 - not yet
            return False
        return True

    await until(there)
    assert found is not None
    return found.calls[0]


async def test_in_a_long_line_choices_take_turns_and_each_wait_still_adds_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router.dispatch.line_watch, "LOOKED", 2)
    async with running_stack(tmp_path, sim={"max_num_seqs": 1, "base_ms": 5.0}) as stack:
        calls = [
            asyncio.ensure_future(
                collect(stack.inference().StreamGenerate(stream_request(max_tokens=20_000, ignore_eos=True)))
            )
        ]
        await until(lambda: stack.replicas[0].table.sequences == 1)
        for _ in range(7):
            body = stream_request(max_tokens=2, ignore_eos=True)
            calls.append(asyncio.ensure_future(collect(stack.inference().StreamGenerate(body))))
        await looked_at(stack, 7)
        calls.pop(0).cancel()
        for events in await asyncio.gather(*calls):
            [choice] = (await explained(stack, "", events[-1].finished.request_id)).choices
            [attempt] = choice.attempts
            waited_s = duration_from_wire(attempt.granted_at) - duration_from_wire(attempt.waits_from)
            assert waited_s == pytest.approx(sum(duration_from_wire(part.time) for part in choice.waits), abs=0.002)
            assert records_pb2.WAIT_REASON_UNSPECIFIED not in {part.reason for part in choice.waits}
