"""Affinity through real routers, replicas and links, with the simulated engine's prefix cache."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.support.keys import Keys, bearer
from tests.support.stack import Stack, collect, running_stack
from tests.support.waiting import until

BLOCK = 64


def ask(ids: list[int], *, session: str = "", max_tokens: int = 2) -> api.GenerateRequest:
    """Build a request of token ids."""
    return api.GenerateRequest(
        model="demo",
        prompt=types.Prompt(tokens=types.TokenPrompt(ids=ids)),
        sampling=types.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
        session_id=session,
    )


def prompt(seed: int, tokens: int = 512) -> list[int]:
    return [10 + (seed * 131 + index * 7) % 300 for index in range(tokens)]


async def replica_and_cached(stack: Stack, router: int, request: api.GenerateRequest, key: str = "") -> tuple[str, int]:
    metadata = bearer(key) if key else None
    answer = await stack.inference(router).Generate(request, metadata=metadata, timeout=30)
    [attempt] = answer.receipt.attempts
    return attempt.replica_id, attempt.cached_tokens


async def test_two_routers_send_the_same_beginning_to_the_same_replica(tmp_path: Path) -> None:
    """Neither knows what the other did; the engine's cache proves that they met."""
    async with running_stack(tmp_path, routers=2, replicas=4) as stack:
        for seed in range(6):
            first, cold = await replica_and_cached(stack, 0, ask(prompt(seed)))
            other, cached = await replica_and_cached(stack, 1, ask([*prompt(seed), 5, 6, 7]))

            assert (other, cold) == (first, 0)
            assert cached == 512


async def test_two_routers_send_a_session_to_the_same_replica(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, replicas=4) as stack:
        for seed in range(6):
            places = {(await replica_and_cached(stack, turn % 2, ask(prompt(10 * seed + turn), session=f"s{seed}")))[0]
                      for turn in range(3)}  # fmt: skip
            assert len(places) == 1


async def test_preferences_are_honoured_while_a_queue_stands(tmp_path: Path) -> None:
    """Twelve conversations on three replicas with two slots each: most turns find their beginning cached."""
    async with running_stack(
        tmp_path, routers=2, replicas=3, sim={"max_num_seqs": 2, "base_ms": 2.0, "kv_tokens": 100_000}
    ) as stack:

        async def converse(number: int) -> tuple[int, int]:
            ids, cached, total = prompt(number, 1_024), 0, 0
            for turn in range(5):
                _, found = await replica_and_cached(stack, (number + turn) % 2, ask(ids, max_tokens=4))
                if turn:
                    cached, total = cached + found, total + len(ids)
                ids = ids + prompt(1_000 + number * 10 + turn, 128)
            return cached, total

        figures = await asyncio.gather(*(converse(number) for number in range(12)))

        cached, total = (sum(column) for column in zip(*figures, strict=True))
        # A third is what chance gives; 0.8 would be every turn on the replica of the last one. On a busy machine the
        # replica of the last turn is more often full.
        assert cached / total >= 0.45
        policies = [router.pools["demo"].affinity for router in stack.routers]
        assert sum(policy.hits for policy in policies) > sum(policy.misses for policy in policies)


async def test_a_burst_of_long_prompts_does_not_wait_inside_an_engine(tmp_path: Path) -> None:
    """Slots and KV cache have room for all forty at once; prefill takes 16 ms per prompt."""
    sim = {"max_num_seqs": 64, "max_num_batched_tokens": 1_024, "per_token_us": 8.0, "kv_tokens": 400_000}
    async with running_stack(tmp_path, routers=2, replicas=2, sim=sim) as stack:
        most: Counter[str] = Counter()
        done = asyncio.Event()

        async def watch() -> None:
            while not done.is_set():
                for replica in stack.replicas:
                    outstanding = replica.table.prefill_tokens
                    most[replica.plan.replica_id] = max(most[replica.plan.replica_id], outstanding)
                await asyncio.sleep(0.002)

        watcher = asyncio.create_task(watch())
        answers = await asyncio.gather(
            *(stack.inference(n % 2).Generate(ask(prompt(n, 2_000), max_tokens=2), timeout=30) for n in range(40))
        )
        done.set()
        await watcher

        attempts = [attempt for answer in answers for attempt in answer.receipt.attempts]
        window = stack.replicas[0].table.windows.prefill_tokens
        assert window == 4_096
        assert all(outstanding <= window for outstanding in most.values())
        waits = sorted(attempt.engine_wait_time.ToTimedelta().total_seconds() for attempt in attempts)
        queued = sorted(attempt.queue_time.ToTimedelta().total_seconds() for attempt in attempts)
        # They waited, but where they can still be ordered: in the queue.
        assert queued[-1] > 0.15
        assert waits[len(waits) // 2] < queued[-1] / 5


async def test_tenants_share_no_cached_prefix(tmp_path: Path) -> None:
    """One replica, one prompt: a second request of the same tenant finds it, another tenant's does not."""
    keys = Keys(tmp_path / "keys.toml")
    async with running_stack(tmp_path, sections={"auth": {"keys_file": str(keys.path)}}) as stack:
        assert (await replica_and_cached(stack, 0, ask(prompt(1)), keys.acme))[1] == 0
        assert (await replica_and_cached(stack, 0, ask(prompt(1)), keys.acme_too))[1] > 0
        assert (await replica_and_cached(stack, 0, ask(prompt(1)), keys.other))[1] == 0


def test_no_client_can_name_a_salt() -> None:
    """It has no field in anything that a client sends."""
    sent = [api.GenerateRequest.DESCRIPTOR, api.StreamGenerateRequest.DESCRIPTOR]
    for message in sent:
        assert not [field.name for field in message.fields if "salt" in field.name]
        sent.extend(
            field.message_type for field in message.fields if field.message_type and field.message_type not in sent
        )
    assert len(sent) > 5


async def test_an_operator_may_let_tenants_share(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.toml")
    sections = {"auth": {"keys_file": str(keys.path)}}
    shared = {"affinity": {"share_prefixes_across_tenants": True}}
    async with running_stack(tmp_path, router=shared, sections=sections) as stack:
        await replica_and_cached(stack, 0, ask(prompt(1)), keys.acme)
        assert (await replica_and_cached(stack, 0, ask(prompt(1)), keys.other))[1] > 0


async def test_the_wish_and_its_outcome_are_exported(tmp_path: Path) -> None:
    async with running_stack(tmp_path, replicas=2) as stack:
        for _ in range(3):
            call = stack.inference().StreamGenerate(api.StreamGenerateRequest(generate=ask(prompt(1))))
            await collect(call)
        registry = stack.routers[0]._metrics.registry

        def value(outcome: str) -> float | None:
            return registry.get_sample_value(
                "penstock_router_affinity_grants_total", {"pool": "demo", "outcome": outcome}
            )

        assert (value("hit"), value("miss"), value("none")) == (3, 0, 0)

        def tokens(kind: str) -> float | None:
            return registry.get_sample_value("penstock_router_tokens_total", {"pool": "demo", "kind": kind})

        # A client has its end a moment before the router counts it.
        await until(lambda: tokens("prompt") == 3 * 512)
        assert tokens("cached") == 2 * 496
