"""Requests of an alias: to its targets, to its fallback, and as copies that nobody waits for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import pytest_asyncio

from penstock import AsyncClient, EmbedItem, InvalidArgumentError, JobItem, PoolingOptions
from penstock.v1 import admin_pb2
from penstock.v1 import inference_pb2 as api
from router.identity.new_key import KeyPlan, add_key
from router.inference.shadows import SHADOW_TENANT
from router.routing import Aliases
from tests.support.keys import bearer
from tests.support.stack import Stack, collect, request, running_stack, sim_pool, stream_request
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CANARY = [{"model": "small", "weight": 95}, {"model": "small-new", "weight": 5}]
ALIASES: dict[str, Any] = {
    "fast": {"targets": CANARY, "fallback": "large"},
    "drawn": {"targets": [{"model": "small"}, {"model": "small-new"}], "sticky": "none"},
    "safe": {"targets": [{"model": "empty"}], "fallback": "large"},
    "alone": {"targets": [{"model": "empty"}]},
    "copied": {"targets": [{"model": "small"}], "shadow": {"model": "large", "share": 1}},
    "held": {"targets": [{"model": "small"}], "shadow": {"model": "stuck", "share": 1}},
    "tried": {"targets": [{"model": "small"}], "shadow": {"model": "empty", "share": 1}},
    "embedder": {"targets": [{"model": "vectors"}], "sticky": "tenant"},
    "lawyer": {"targets": [{"model": "vectors", "adapter": "law"}]},
}
POOLS = {
    "small": sim_pool(),
    "small-new": sim_pool(),
    "large": sim_pool(),
    "stuck": sim_pool(base_ms=20_000.0),
    "empty": sim_pool(),
    "vectors": {**sim_pool(vector_size=4), "task": "embed"},
}
KeyNames = dict[str, str]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.toml"


@pytest.fixture(scope="module")
def keys(path: Path) -> KeyNames:
    return {
        "acme": add_key(path, KeyPlan("acme")),
        "narrow": add_key(path, KeyPlan("narrow", models=("fast",))),
        "ops": add_key(path, KeyPlan("ops", role="operator")),
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, path: Path, keys: KeyNames) -> AsyncIterator[Stack]:
    sections = {"auth": {"keys_file": str(path)}, "aliases": ALIASES}
    folder = tmp_path_factory.mktemp("stack")
    async with running_stack(
        folder, replicas=0, pools=POOLS, sections=sections, router={"http": {"port": 0}}
    ) as running:
        for pool in POOLS:
            if pool != "empty":
                await running.add_replica(pool)
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack, keys: KeyNames) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}", api_key=keys["acme"]) as open_client:
        yield open_client


def counted(stack: Stack, alias: str) -> dict[tuple[str, str], float]:
    """Return the requests of an alias by model and way."""
    families = stack.routers[0]._metrics.registry.collect()
    return {
        (each.labels["model"], each.labels["way"]): each.value
        for family in families
        if family.name == "penstock_alias_requests"
        for each in family.samples
        if each.name.endswith("_total") and each.labels["alias"] == alias
    }


def shadow_errors(stack: Stack, alias: str) -> dict[str, float]:
    return {
        each.labels["reason"]: each.value
        for family in stack.routers[0]._metrics.registry.collect()
        if family.name == "penstock_alias_shadow_errors"
        for each in family.samples
        if each.name.endswith("_total") and each.labels["alias"] == alias
    }


async def ask(stack: Stack, key: str, model: str, **fields: Any) -> api.GenerateResponse:
    asked = request(model=model, max_tokens=2)
    for name, value in fields.items():
        setattr(asked, name, value)
    found: api.GenerateResponse = await stack.inference().Generate(asked, metadata=bearer(key))
    return found


async def record(stack: Stack, key: str, request_id: str) -> Any:
    """Return the record of a request, as soon as it is there."""
    found: list[Any] = []

    async def there() -> bool:
        try:
            explained = await stack.admin().Explain(
                admin_pb2.ExplainRequest(request_id=request_id), metadata=bearer(key)
            )
        except grpc.aio.AioRpcError:
            return False
        found[:] = [explained.calls[-1]]
        return True

    await until(there)
    return found[0]


# --- targets ----------------------------------------------------------------------------------------------------------


async def test_sessions_go_to_their_targets_by_weight_and_stay_there(stack: Stack, keys: KeyNames) -> None:
    aliases = Aliases(stack.settings)
    sessions = [f"s{number}" for number in range(120)]
    wanted = {name: route.pool for name in sessions if (route := aliases.target("fast", "acme", name, "")) is not None}
    before = counted(stack, "fast")
    for _ in range(2):
        replies = await asyncio.gather(*(ask(stack, keys["acme"], "fast", session_id=name) for name in sessions))
        assert wanted == {name: reply.receipt.model for name, reply in zip(sessions, replies, strict=True)}
    shares = Counter(wanted.values())
    # 5 % of 120, within three standard deviations.
    assert 1 <= shares["small-new"] <= 13
    assert {("small", "target"): 2 * shares["small"], ("small-new", "target"): 2 * shares["small-new"]} == {
        way: count - before.get(way, 0) for way, count in counted(stack, "fast").items() if way[1] == "target"
    }


async def test_requests_of_an_alias_that_is_not_sticky_are_drawn_one_by_one(stack: Stack, keys: KeyNames) -> None:
    replies = await asyncio.gather(*(ask(stack, keys["acme"], "drawn", session_id="same") for _ in range(40)))
    # One target alone has a chance of one in 10**12.
    assert {"small", "small-new"} == {reply.receipt.model for reply in replies}


async def test_answer_and_record_say_which_model_served(stack: Stack, keys: KeyNames) -> None:
    call = stack.inference().StreamGenerate(stream_request(model="drawn", max_tokens=2), metadata=bearer(keys["acme"]))
    told = dict(await call.initial_metadata())
    finished = (await collect(call))[-1].finished
    assert told["penstock-model"] == finished.receipt.model
    found = await record(stack, keys["acme"], finished.request_id)
    assert ("drawn", finished.receipt.model) == (found.alias, found.pool)
    plain = stack.inference().StreamGenerate(stream_request(model="small"), metadata=bearer(keys["acme"]))
    assert "penstock-model" not in dict(await plain.initial_metadata())
    assert "small" == (await collect(plain))[-1].finished.receipt.model


async def test_a_key_for_the_alias_uses_its_targets_through_it_alone(stack: Stack, keys: KeyNames) -> None:
    reply = await ask(stack, keys["narrow"], "fast")
    assert reply.receipt.model in ("small", "small-new")
    for model in ("small", "drawn"):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await ask(stack, keys["narrow"], model)
        assert grpc.StatusCode.PERMISSION_DENIED is raised.value.code()
    assert "fast" == (await record(stack, keys["narrow"], reply.request_id)).alias
    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}", api_key=keys["narrow"]) as client:
        (model,) = await client.list_models()
        assert ("fast", ("small", "small-new"), 2) == (model.name, model.alias_of, model.ready_replicas)
        assert model == await client.get_model("fast")
        assert ("fast",) == (await client.whoami()).models
        assert (await client.count_tokens("fast", "one two")).tokens > 0
        await until(lambda: used(client, reply.receipt.model))


async def used(client: AsyncClient, pool: str) -> bool:
    return any(line.pool == pool and line.requests for line in (await client.usage()).lines)


async def test_a_name_that_is_neither_gets_the_names_that_are(stack: Stack, keys: KeyNames) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=r"fast.*small-new") as raised:
        await ask(stack, keys["acme"], "fats")
    assert grpc.StatusCode.NOT_FOUND is raised.value.code()


# --- fallback ---------------------------------------------------------------------------------------------------------


async def test_without_a_replica_the_fallback_serves_and_the_target_counts_the_demand(
    stack: Stack, keys: KeyNames
) -> None:
    demand = stack.routers[0].pools["empty"].admission.demand
    before = demand.report()
    reply = await ask(stack, keys["acme"], "safe")
    assert "large" == reply.receipt.model
    assert 1 <= counted(stack, "safe")["large", "fallback"]
    found = await record(stack, keys["acme"], reply.request_id)
    assert ("safe", "NO_REPLICA", 1) == (found.alias, found.refused.reason, found.refused.times)
    assert before != demand.report()
    with pytest.raises(grpc.aio.AioRpcError, match="no replica of 'empty'"):
        await ask(stack, keys["acme"], "alone")


async def test_a_key_finds_its_result_in_the_fallback(stack: Stack, keys: KeyNames) -> None:
    first = await ask(stack, keys["acme"], "safe", idempotency_key="once")
    again: list[api.GenerateResponse] = []

    async def stored() -> bool:
        again[:] = [await ask(stack, keys["acme"], "safe", idempotency_key="once")]
        return again[0].request_id == first.request_id

    await until(stored)
    assert first == again[0]
    assert "large" == again[0].receipt.model


async def test_a_resume_token_leads_to_the_fallback_that_runs_the_request(stack: Stack, keys: KeyNames) -> None:
    asked = stream_request(model="safe", max_tokens=400, ignore_eos=True)
    call = stack.inference().StreamGenerate(asked, metadata=bearer(keys["acme"]))
    token, received = b"", 0
    while received < 2:
        event = await call.read()
        token = event.started.resume_token or token
        received += len(event.delta.token_ids)
    asked.resume.resume_token = token
    asked.resume.received_tokens.append(received)
    rest = stack.inference().StreamGenerate(asked, metadata=bearer(keys["acme"]))
    finished = (await collect(rest))[-1].finished
    call.cancel()
    assert (400, "large") == (finished.usage.output_tokens, finished.receipt.model)


# --- copies -----------------------------------------------------------------------------------------------------------


async def test_a_copy_runs_for_a_tenant_of_its_own(stack: Stack, keys: KeyNames) -> None:
    reply = await ask(stack, keys["acme"], "copied")
    assert "small" == reply.receipt.model
    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}", api_key=keys["ops"]) as client:

        async def charged() -> bool:
            lines = (await client.usage(tenant=SHADOW_TENANT)).lines
            return any(line.pool == "large" and line.output_tokens == 2 for line in lines)

        await until(charged)
    assert {("small", "target"): 1, ("large", "shadow"): 1} == counted(stack, "copied")


async def test_nobody_waits_for_a_copy(stack: Stack, keys: KeyNames) -> None:
    reply = await ask(stack, keys["acme"], "held")
    assert 2 == len(reply.choices[0].token_ids)
    # One step of its engine takes 20 s.
    await until(lambda: stack.routers[0].pools["stuck"].active == 1)
    waiting = stack.routers[0].pools["stuck"].choices.snapshot()[0].entry
    assert (SHADOW_TENANT, "BATCH") == (waiting.tenant, waiting.request_class.name)


async def test_a_copy_that_fails_is_counted_only(stack: Stack, keys: KeyNames) -> None:
    assert "small" == (await ask(stack, keys["acme"], "tried")).receipt.model
    await until(lambda: shadow_errors(stack, "tried") == {"NO_REPLICA": 1})


# --- other calls ------------------------------------------------------------------------------------------------------


async def test_items_of_a_job_are_spread_over_the_targets(client: AsyncClient) -> None:
    items = [JobItem(f"q{number}", f"Question {number}?", {"max_tokens": 2}) for number in range(40)]
    job = await client.submit_job("drawn", items)
    served = Counter[str]()
    async for update in client.watch_job(job.job_id):
        served.update(result.completion.receipt.model for result in update.results if result.completion is not None)
        job = update.job
    assert ("drawn", 40, 0) == (job.model, job.succeeded_items, job.failed_items)
    assert {"small", "small-new"} == set(served)
    vectors = await client.submit_job("embedder", [EmbedItem("a", "text")])
    async for update in client.watch_job(vectors.job_id):
        vectors = update.job
    assert 1 == vectors.succeeded_items


async def test_vectors_come_from_the_target(stack: Stack, client: AsyncClient) -> None:
    found = await client.embed("embedder", "text")
    assert (await client.embed("vectors", "text")).vectors == found.vectors
    assert "vectors" == found.receipt.model
    assert 1 <= counted(stack, "embedder")["vectors", "target"]


async def test_an_adapter_beside_that_of_an_alias_of_vectors_is_named_as_the_request_has_it(
    client: AsyncClient,
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        await client.embed("lawyer", "text", options=PoolingOptions(lora_adapter="tax"))
    assert ["options.lora_adapter"] == [each.field for each in refused.value.violations]


async def test_over_http_the_answer_has_the_name_that_was_asked_for_and_a_header_with_the_model(
    stack: Stack, keys: KeyNames
) -> None:
    http = stack.routers[0].http
    assert http is not None
    base, headers = f"http://127.0.0.1:{http.port}/v1", {"authorization": f"Bearer {keys['acme']}"}
    asked: dict[str, Any] = {"model": "safe", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post(f"{base}/chat/completions", json=asked) as reply:
            assert ("safe", "large") == ((await reply.json())["model"], reply.headers["penstock-model"])
        async with session.post(f"{base}/chat/completions", json={**asked, "stream": True}) as reply:
            assert '"model":"safe"' in await reply.text()
            assert "large" == reply.headers["penstock-model"]
        for stream in (False, True):
            message = {**asked, "stream": stream}
            async with session.post(f"{base}/messages", json=message) as reply:
                assert '"model":"safe"' in (await reply.text()).replace(" ", "")
                assert "large" == reply.headers["penstock-model"]
            for background in (False, True):
                response = {"model": "safe", "input": "Hi", "stream": stream, "background": background}
                async with session.post(f"{base}/responses", json=response) as reply:
                    assert '"model":"safe"' in (await reply.text()).replace(" ", "")
                    assert "large" == reply.headers["penstock-model"]
        async with session.get(f"{base}/models") as reply:
            listed = {each["id"]: each["root"] for each in (await reply.json())["data"]}
            assert ("small", "small") == (listed["fast"], listed["small"])
        async with session.post(f"{base}/embeddings", json={"model": "embedder", "input": "x"}) as reply:
            assert ("embedder", "vectors") == ((await reply.json())["model"], reply.headers["penstock-model"])
        line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {**asked, "model": "fast"}}
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", aiohttp.payload.JsonPayload(line), filename="in.jsonl")
        async with session.post(f"{base}/files", data=form) as reply:
            file = (await reply.json())["id"]
        batch = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "1h"}
        async with session.post(f"{base}/batches", json=batch) as reply:
            begun = await reply.json()
        assert "fast" == begun["model"]

        async def done() -> bool:
            async with session.get(f"{base}/batches/{begun['id']}") as reply:
                return dict(await reply.json())["status"] == "completed"

        await until(done)
