"""Revocations that end what a key has begun, over the real ports of two routers."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import pytest_asyncio

from cluster.cli.main import main
from cluster.lifecycle import timeout_awake
from cluster.registry.contract import Author, Edit, Position
from deployments.engines.sim.engine import SimEngine
from penstock.client import (
    AsyncClient,
    InvalidArgumentError,
    NewKey,
    PenstockClientError,
    RegistryEdit,
    UnauthenticatedError,
)
from penstock.v1 import inference_pb2 as api
from penstock.v1 import jobs_pb2
from router.registry.keys import revocation_of
from tests.router.http.test_openai import ASK, HTTP
from tests.support.keys import Keys, bearer
from tests.support.speed import patience
from tests.support.stack import Stack, request, running_stack, stream_request
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("patient_registry")]

LONG = {"max_tokens": 30_000, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    async with running(folder, keys) as found:
        yield found


def running(folder: Path, keys: Keys) -> Any:
    sections = {"auth": {"keys_file": str(keys.path)}}
    return running_stack(folder, routers=2, router=HTTP, sim={"base_ms": 20.0}, sections=sections)


def client(stack: Stack, key: str, router: int = 0) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{stack.routers[router].port}", api_key=key, allow_plaintext_key=True)


def path(stack: Stack, router: int, name: str) -> str:
    http = stack.routers[router].http
    assert http is not None
    return f"http://127.0.0.1:{http.port}{name}"


def idle(stack: Stack) -> Callable[[], bool]:
    return lambda: stack.replicas[0].table.sequences == 0


async def new_key(stack: Stack, keys: Keys) -> NewKey:
    async with client(stack, keys.admin) as admin:
        made = await admin.create_key("revoked")
    assert made.behind == ()
    return made


async def revoke(stack: Stack, keys: Keys, key: str, value: Any = None, *, end_streams: bool = True) -> None:
    async with client(stack, keys.admin) as admin:
        result = await admin.edit_registry([RegistryEdit("key", key, value, end_streams=end_streams)])
        assert result.behind == ()


@contextlib.contextmanager
def hurried(stack: Stack) -> Iterator[None]:
    """Have the engine take no time for its steps, so that an output that was long enough ends soon."""
    engine = stack.engines[0]
    assert isinstance(engine, SimEngine)
    before, engine._settings = engine._settings, engine._settings.model_copy(update={"base_ms": 0.0})
    try:
        yield
    finally:
        engine._settings = before


async def command(stack: Stack, keys: Keys, *words: str) -> int:
    """Run a command as an admin. Return its exit status."""
    file = keys.path.with_name("admin-key")
    file.write_text(keys.admin)
    flags = ["--target", f"127.0.0.1:{stack.routers[0].port}", "--api-key-file", str(file), "--allow-plaintext-key"]
    return await asyncio.to_thread(main, [*words, *flags])


# --- calls ------------------------------------------------------------------------------------------------------------


async def grpc_end(call: Any) -> str:
    try:
        if not hasattr(call, "read"):
            await call
            return "OK"
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return "OK"


async def http_end(session: aiohttp.ClientSession, key: str, url: str, body: dict[str, Any]) -> str:
    headers = {"Authorization": f"Bearer {key}"}
    async with session.post(url, json={"model": "demo", **body}, headers=headers) as reply:
        return f"{reply.status}: {await reply.text()}"


CHAT = {"messages": ASK, "ignore_eos": True, "max_tokens": 30_000}


@pytest.mark.parametrize("router", [0, 1])
async def test_calls_of_every_kind_end_with_the_reason_and_those_of_other_keys_go_on(
    stack: Stack, keys: Keys, router: int
) -> None:
    made = await new_key(stack, keys)
    stub, metadata = stack.inference(router), bearer(made.key)
    items = [jobs_pb2.JobItem(custom_id="a", request=request(**LONG))]

    async def upload() -> AsyncIterator[jobs_pb2.SubmitJobRequest]:
        yield jobs_pb2.SubmitJobRequest(header=jobs_pb2.JobHeader(model="demo"))
        yield jobs_pb2.SubmitJobRequest(items=jobs_pb2.JobItems(items=items))
        await asyncio.sleep(60)

    async with aiohttp.ClientSession() as session:
        calls = {
            "stream": grpc_end(stub.StreamGenerate(stream_request(**LONG), metadata=metadata)),
            "unary": grpc_end(stub.Generate(request(**LONG), metadata=metadata)),
            "upload": grpc_end(stack.jobs(router).SubmitJob(upload(), metadata=metadata)),
        }
        for name, url, body in (
            ("chat", "/v1/chat/completions", CHAT),
            ("chat-stream", "/v1/chat/completions", {**CHAT, "stream": True}),
            ("texts", "/v1/completions", {**CHAT, "messages": None, "prompt": ["a", "b"], "stream": True}),
            ("messages", "/v1/messages", {**CHAT, "stream": True}),
            ("responses", "/v1/responses", {"input": "x", "max_output_tokens": 30_000, "stream": True}),
        ):
            fields = {field: value for field, value in body.items() if value is not None}
            calls[name] = http_end(session, made.key, path(stack, router, url), fields)
        begun = {name: asyncio.ensure_future(call) for name, call in calls.items()}
        # Each of them has shown its key, also the upload, and all others run.
        known = stack.routers[router]._parts.jobs.feeder._revocations._open
        await until(lambda: len(known.get(made.id, ())) == len(begun) and stack.replicas[0].table.sequences == 8)
        other = stub.StreamGenerate(stream_request(max_tokens=100, ignore_eos=True), metadata=bearer(keys.acme))
        await other.read()
        await revoke(stack, keys, made.id)
        async with asyncio.timeout(15 * patience()):
            ends = dict(zip(begun, await asyncio.gather(*begun.values()), strict=True))
    told = f"the API key {made.id} was revoked, and what it had begun ended with it"
    assert {name: told in end for name, end in ends.items()} == dict.fromkeys(ends, True)
    for name in ("stream", "unary", "upload"):
        assert ends[name] == f"UNAUTHENTICATED: {told}"
    assert ends["chat"].startswith("401: ")
    assert json.loads(ends["chat"][5:])["error"]["code"] == "key_revoked"
    for name in ("chat-stream", "texts", "messages"):
        # On a slow machine a stream may have sent nothing yet.
        assert ends[name][:5] in ("200: ", "401: "), name
        assert "authentication_error" in ends[name], name
    assert "200: " in {ends[name][:5] for name in ("chat-stream", "texts", "messages")}
    assert await grpc_end(other) == "OK"
    await until(idle(stack))


@pytest.mark.parametrize("value", [None, {"tenant": "revoked", "expires": "2026-01-01T00:00:00Z"}])
async def test_without_the_wish_what_a_key_has_begun_goes_on(stack: Stack, keys: Keys, value: Any) -> None:
    made = await new_key(stack, keys)
    async with (
        client(stack, made.key, 1) as caller,
        caller.stream("demo", "x", max_tokens=60, ignore_eos=True) as opened,
    ):
        events = aiter(opened)
        await anext(events)
        await revoke(stack, keys, made.id, value, end_streams=False)
        assert [event async for event in events][-1].usage.output_tokens == 60  # type: ignore[union-attr]
    await until(idle(stack))


async def test_an_expiry_may_end_streams_too(stack: Stack, keys: Keys) -> None:
    made = await new_key(stack, keys)
    call = asyncio.ensure_future(
        grpc_end(stack.inference(1).StreamGenerate(stream_request(**LONG), metadata=bearer(made.key)))
    )
    await until(lambda: stack.replicas[0].table.sequences == 1)
    await revoke(stack, keys, made.id, {"tenant": "revoked", "expires": "2026-01-01T00:00:00Z"})
    assert (await call).startswith("UNAUTHENTICATED: the API key")


async def test_a_request_whose_client_has_left_does_not_linger(stack: Stack, keys: Keys) -> None:
    """One that lingers already ends, and so does one that would."""
    made = await new_key(stack, keys)
    for key in ("gone", "here"):
        asked = stream_request(**LONG)
        asked.generate.idempotency_key = key
        call = stack.inference(1).StreamGenerate(asked, metadata=bearer(made.key))
        await call.read()
        if key == "gone":
            call.cancel()
    await until(lambda: stack.replicas[0].table.sequences == 2)
    await revoke(stack, keys, made.id)
    async with timeout_awake(stack.settings.queue.attach_grace_s / 2):
        await until(idle(stack))
    assert (await grpc_end(call)).startswith("UNAUTHENTICATED")


# --- work without a call ----------------------------------------------------------------------------------------------


async def background(stack: Stack, key: str, router: int = 1) -> str:
    """Begin a response in the background. Return its id."""
    body = {"input": "x", "max_output_tokens": 30_000, "background": True}
    async with aiohttp.ClientSession() as session:
        return str(json.loads((await http_end(session, key, path(stack, router, "/v1/responses"), body))[5:])["id"])


async def ended_response(stack: Stack, key: str, response: str) -> dict[str, Any]:
    """Wait for the end of a response, at the first router."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:
        while True:
            async with session.get(path(stack, 0, f"/v1/responses/{response}")) as reply:
                found: dict[str, Any] = await reply.json()
            if found["status"] not in ("queued", "in_progress"):
                return found
            await asyncio.sleep(0.05)


async def job(stack: Stack, key: str, router: int = 1, items: int = 40) -> str:
    """Submit a job of long items. Return its id."""
    parts = [jobs_pb2.SubmitJobRequest(header=jobs_pb2.JobHeader(model="demo", api_key="of somebody else"))]
    asked = request(**LONG)
    asked.ClearField("model")
    chunk = [jobs_pb2.JobItem(custom_id=str(number), request=asked) for number in range(items)]
    parts.append(jobs_pb2.SubmitJobRequest(items=jobs_pb2.JobItems(items=chunk)))
    return str((await stack.jobs(router).SubmitJob(iter(parts), metadata=bearer(key))).job.job_id)


async def ended_job(stack: Stack, key: str, job_id: str) -> tuple[str, set[str]]:
    """Wait for the end of a job, at the first router. Return its state, and the reasons of its items."""
    reasons: set[str] = set()
    call = stack.jobs().WatchJob(jobs_pb2.WatchJobRequest(job_id=job_id), metadata=bearer(key))
    state = ""
    while (news := await call.read()) is not grpc.aio.EOF:
        reasons |= {result.error.reason for result in news.results}
        state = jobs_pb2.JobState.Name(news.job.state)
    return state, reasons


async def test_jobs_and_responses_in_the_background_end_with_the_reason(stack: Stack, keys: Keys) -> None:
    made = await new_key(stack, keys)
    async with client(stack, keys.admin) as admin:
        second = await admin.create_key("revoked")
    response, job_id = await background(stack, made.key), await job(stack, made.key)
    kept = await job(stack, second.key, items=1)
    await until(lambda: stack.replicas[0].table.sequences >= 3)
    await revoke(stack, keys, made.id)
    async with asyncio.timeout(10 * patience()):
        found = await ended_response(stack, second.key, response)
        assert found["status"] == "failed"
        assert "was revoked" in found["error"]["message"]
        assert await ended_job(stack, second.key, job_id) == ("JOB_STATE_CANCELLED", {"KEY_REVOKED"})
    states = (await stack.jobs().GetJob(jobs_pb2.GetJobRequest(job_id=kept), metadata=bearer(second.key))).job
    assert states.state == jobs_pb2.JOB_STATE_RUNNING
    await stack.jobs().CancelJob(jobs_pb2.CancelJobRequest(job_id=kept), metadata=bearer(second.key))
    await until(idle(stack))


async def test_a_key_of_the_keys_file_may_be_named(
    stack: Stack, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    call = asyncio.ensure_future(
        grpc_end(stack.inference(1).StreamGenerate(stream_request(**LONG), metadata=bearer(keys.other)))
    )
    await until(lambda: stack.replicas[0].table.sequences == 1)
    words = ("delete", "keys", keys.other.split("_")[1], "--yes", "--end-streams")
    assert await command(stack, keys, *words) == 0
    assert f"x what key {keys.other.split('_')[1]} has begun ends" in capsys.readouterr().out
    assert (await call).startswith("UNAUTHENTICATED")
    # It is still in the file.
    await stack.inference(1).ListModels(api.ListModelsRequest(), metadata=bearer(keys.other))


async def test_only_keys_have_streams_to_end(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as admin:
        with pytest.raises(InvalidArgumentError, match=r"edits\[0\]\.end_streams: must be false for kind 'tenant'"):
            await admin.edit_registry([RegistryEdit("tenant", "a", {}, end_streams=True)])
        with pytest.raises(InvalidArgumentError, match=r"edits\[0\]\.name: must match"):
            await admin.edit_registry([RegistryEdit("key", "a", None, end_streams=True)])


# --- replaced keys ----------------------------------------------------------------------------------------------------


async def test_a_key_is_replaced_with_an_overlap_and_no_failed_request(
    stack: Stack, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    async with client(stack, keys.admin) as admin:
        old = await admin.create_key("made", models=["demo"], classes=["standard"])
        async with client(stack, old.key, 1) as before:
            stream = before.stream("demo", "x", max_tokens=3_000, ignore_eos=True)
            async with stream:
                events = aiter(stream)
                await anext(events)
                words = ("keys", "new", "--cluster", "--replaces", old.id, "--overlap", "1h")
                assert await command(stack, keys, *words) == 0
                new = capsys.readouterr().out.strip()
                assert new.startswith("psk_")
                found = {each.name: each.value for each in await admin.registry("key")}
                rights = {"tenant": "made", "role": "user", "models": ["demo"], "classes": ["standard"]}
                assert rights == found[new.split("_")[1]]
                left = datetime.datetime.fromisoformat(found[old.id]["expires"]) - datetime.datetime.now(datetime.UTC)
                assert 3_000 < left.total_seconds() <= 3_600
                async with client(stack, new, 1) as after:
                    for _ in range(5):
                        await before.generate("demo", "x", max_tokens=2)
                        await after.generate("demo", "x", max_tokens=2)
                    await admin.edit_registry(
                        [RegistryEdit("key", old.id, {**found[old.id], "expires": "2026-01-01T00:00:00Z"})]
                    )
                    with pytest.raises(UnauthenticatedError, match="expired"):
                        await before.generate("demo", "x", max_tokens=2)
                    await after.generate("demo", "x", max_tokens=2)
                    with hurried(stack):
                        assert "Finished" in [type(event).__name__ async for event in events]
        # One that expires anyway does not live longer.
        soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5)
        short = await admin.create_key("made", expires=soon)
        await admin.replace_key(short.id, overlap=86_400.0)
        (entry,) = await admin.registry("key", name=short.id)
        assert abs(datetime.datetime.fromisoformat(entry.value["expires"]) - soon) < datetime.timedelta(seconds=1)
        with pytest.raises(InvalidArgumentError, match=r"replaces: must be a key of the registry, got '0{16}'"):
            await admin.replace_key("0" * 16)
        with pytest.raises(InvalidArgumentError, match="overlap: must be 0 s to 31622400 s, got 1000000000 s"):
            await admin.replace_key(short.id, overlap=1e9)
        late = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
        with pytest.raises(InvalidArgumentError, match="expires: expires must be after not_before"):
            await admin.create_key("made", not_before=late, expires=soon)
        for flags, told in (
            (["--replaces", "0" * 16], "--replaces: must be a key of the registry, got "),
            (["--replaces", short.id, "--overlap", "999d"], "--overlap: must be 0 s to 31622400 s, got 86313600 s"),
            (["--tenant", "a b"], "--tenant: must match pattern "),
        ):
            assert await command(stack, keys, "keys", "new", "--cluster", *flags) == 2
            assert capsys.readouterr().err.startswith(f"penstock: {told}")


# --- deaths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [True, False])
async def test_a_router_that_dies_in_the_middle_leaves_nothing_half_done(
    tmp_path: Path, keys: Keys, written: bool
) -> None:
    """The one that takes the revocation dies, once it is in Redis or just before."""
    async with running(tmp_path, keys) as stack:
        made = await new_key(stack, keys)
        call = stack.inference(1).StreamGenerate(stream_request(**LONG), metadata=bearer(made.key))
        await call.read()
        end = asyncio.ensure_future(grpc_end(call))
        registry = stack.routers[0]._parts.registry
        reached = asyncio.Event()
        apply = registry._store.apply

        async def dying(edits: list[Edit], *rest: Any) -> Position | None:
            if written:
                await apply(edits, *rest)
            reached.set()
            await asyncio.Event().wait()
            raise AssertionError

        registry._store.apply = dying  # type: ignore[method-assign, assignment]
        asked = asyncio.ensure_future(revoke(stack, keys, made.id))
        await reached.wait()
        await stack.routers[0].stop(drain_s=0.0)
        with pytest.raises(PenstockClientError):
            await asked
        if written:
            # The neighbour hears of it by itself. A call sent before its stream ends might be served.
            assert (await end).startswith("UNAUTHENTICATED: the API key")
        listed = stack.inference(1).ListModels(api.ListModelsRequest(), metadata=bearer(made.key))
        if written:
            assert (await grpc_end(listed)).startswith("UNAUTHENTICATED: the API key is not known")
        else:
            assert await grpc_end(listed) == "OK"
            assert not end.done()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await end


async def test_what_a_dead_router_left_behind_ends_where_it_is_taken_up(tmp_path: Path, keys: Keys) -> None:
    async with running(tmp_path, keys) as stack:
        made = await new_key(stack, keys)
        async with client(stack, keys.admin) as admin:
            second = await admin.create_key("revoked")
        response, job_id = await background(stack, made.key), await job(stack, made.key)
        await until(lambda: stack.replicas[0].table.sequences >= 2)
        for router, channel in zip(stack.routers, stack.channels, strict=True):
            await channel.close()
            await router.stop(drain_s=0.0)
        stack.routers.clear()
        stack.channels.clear()
        store = stack.registry()
        await store.apply([Edit("key", made.id, None), revocation_of(made.id)], Author("root"), Position())
        await store.close()
        await stack.add_router()
        async with asyncio.timeout(15 * patience()):
            found = await ended_response(stack, second.key, response)
            assert "was revoked" in found["error"]["message"]
            assert await ended_job(stack, second.key, job_id) == ("JOB_STATE_CANCELLED", {"KEY_REVOKED"})
