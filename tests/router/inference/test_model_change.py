"""A pool gets a model with another tokenizer: token ids of the old one mean another text to the new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import Tokenizer as TokenizerFile

from cluster.models import GenerationSpec
from deployments.demo_model import MODEL_DIR
from deployments.engines.base import TokenSink
from deployments.engines.sim.engine import SimEngine
from penstock.client import AsyncClient, Finished, Sampling
from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.catalog import Catalog
from router.generation import resume_state
from router.generation.recovery import REFUSED_RESUMES
from router.links.replicas import ReplicaSet
from tests.router.dispatch.streams import error_of, move_on, stand
from tests.support.stack import Stack, collect, first_tokens, ids_of, request, running_stack, stream_request
from tests.support.tiny_model import make_tokenizer
from tests.support.waiting import until


class Spy(SimEngine):
    """Remembers the prompts that it was given."""

    prompts: tuple[tuple[int, ...], ...] = ()

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        """Note the prompt first."""
        if "#" in sequence_id:
            self.prompts += (tuple(spec.prompt_token_ids),)
        await super().submit(sequence_id, spec, sink)


def with_tokenizer(folder: Path) -> Path:
    """Fill a new folder."""
    folder.mkdir()
    make_tokenizer(folder)
    return folder


async def other_model(stack: Stack, folder: Path) -> Spy:
    """Start a replica whose tokenizer is another one."""
    engine = Spy(stack.settings.pools["demo"], with_tokenizer(folder))
    await stack.add_replica("demo", engine)
    return engine


def of_ids(*ids: int, **sampling: Any) -> api.StreamGenerateRequest:
    """Build a stream whose prompt is ids: nobody can encode it anew."""
    asked = stream_request(**sampling)
    asked.generate.prompt.CopyFrom(types.Prompt(tokens=types.TokenPrompt(ids=ids)))
    return asked


async def waiting(stack: Stack, asked: api.StreamGenerateRequest) -> Any:
    """Open a stream that waits."""
    call = stack.inference().StreamGenerate(asked)
    await until(lambda: stack.routers[0].pools["demo"].active == 1)
    return call


async def swapped(stack: Stack, folder: Path, asked: api.StreamGenerateRequest) -> tuple[Any, Spy]:
    """Replace the only model while a request waits; returns the request's call, and the new engine."""
    await collect(stack.inference().StreamGenerate(stream_request()))
    await stack.replicas[0].stop(drain_s=0)
    call = await waiting(stack, asked)
    return call, await other_model(stack, folder)


async def failed(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    return caught.value


def encoded(folder: Path, text: str) -> tuple[int, ...]:
    """Encode a text with a tokenizer."""
    return tuple(TokenizerFile.from_file(str(folder / "tokenizer.json")).encode(text).ids)


async def test_ids_that_waited_for_the_old_model_do_not_run_on_the_new_one(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        call, engine = await swapped(stack, tmp_path / "b", of_ids(1, 2, 3))
        error = await failed(call)
        assert grpc.StatusCode.UNAVAILABLE is error.code()
        assert "model changed" in str(error.details())
        assert () == engine.prompts
        # The slot is free, and who comes now is tokenized for the new one.
        assert ids_of(await collect(stack.inference().StreamGenerate(stream_request())))
        await until(lambda: stack.replicas[-1].table.sequences == 0)


@pytest.mark.parametrize("named", [False, True])
async def test_text_that_waited_for_the_old_model_is_encoded_anew_unless_it_names_ids(
    tmp_path: Path, named: bool
) -> None:
    asked = stream_request("What is Penstock?", max_tokens=4, ignore_eos=True, stop_token_ids=[5] if named else [])
    async with running_stack(tmp_path) as stack:
        call, engine = await swapped(stack, tmp_path / "b", asked)
        if named:
            assert "model changed" in str((await failed(call)).details())
            assert () == engine.prompts
            return
        events = await collect(call)
        wanted = encoded(tmp_path / "b", "What is Penstock?")
        assert (wanted,) == engine.prompts
        assert wanted != encoded(MODEL_DIR, "What is Penstock?")
        (started,) = [event.started for event in events if event.HasField("started")]
        assert len(wanted) == started.prompt_tokens == events[-1].finished.usage.prompt_tokens
        assert 4 == len(ids_of(events))


async def test_what_the_new_model_can_not_take_hears_why(tmp_path: Path) -> None:
    """Its context is shorter: the engine would refuse it."""
    text = " ".join(f"number {number}" for number in range(200))
    async with running_stack(tmp_path) as stack:
        await collect(stack.inference().StreamGenerate(stream_request()))
        await stack.replicas[0].stop(drain_s=0)
        call = await waiting(stack, stream_request(text))
        small = stack.settings.pools["demo"].sim.model_copy(update={"max_model_len": 64})
        pool = stack.settings.pools["demo"].model_copy(update={"sim": small})
        await stack.add_replica("demo", Spy(pool, with_tokenizer(tmp_path / "b")))
        error = await failed(call)
        assert grpc.StatusCode.INVALID_ARGUMENT is error.code()
        assert "maximum context length is 64 tokens" in str(error.details())


async def test_where_both_models_run_each_request_has_the_ids_of_its_replica(tmp_path: Path) -> None:
    """Ids go to a replica that reads them, and text to any."""
    async with running_stack(tmp_path, sim={"base_ms": 5.0}) as stack:
        old = Spy(stack.settings.pools["demo"], MODEL_DIR)
        await stack.replicas[0].stop(drain_s=0)
        await stack.add_replica("demo", old)
        new = await other_model(stack, tmp_path / "b")
        texts = [f"text {number}" for number in range(6)]
        ids = [(8, 9), (5, 6, 7)]
        asked = [stream_request(text, max_tokens=4, ignore_eos=True) for text in texts]
        asked += [of_ids(*each, max_tokens=4, ignore_eos=True) for each in ids]
        for events in await asyncio.gather(*(collect(stack.inference().StreamGenerate(each)) for each in asked)):
            assert 4 == len(ids_of(events))
        assert set(old.prompts) <= {encoded(MODEL_DIR, text) for text in texts} | set(ids)
        assert set(new.prompts) <= {encoded(tmp_path / "b", text) for text in texts}
        assert set(ids) <= set(old.prompts)
        assert new.prompts
        assert len(asked) == len(old.prompts) + len(new.prompts)


async def whole(stack: Stack) -> list[int]:
    """Return the output of a request that nothing disturbs."""
    return ids_of(await collect(stack.inference().StreamGenerate(stream_request(max_tokens=60, ignore_eos=True))))


@pytest.mark.parametrize("others", [0, 1])
async def test_output_goes_on_with_the_same_weights_and_tokenizer_only(tmp_path: Path, others: int) -> None:
    """Its replica dies. With a sibling left it goes on there, and else it fails: never in the other model."""
    async with running_stack(tmp_path, replicas=1 + others, sim={"base_ms": 20.0}) as stack:
        undisturbed = await whole(stack)
        call = stack.inference().StreamGenerate(stream_request(max_tokens=60, ignore_eos=True))
        began = await first_tokens(call, 5)
        place = next(event.started.replica_id for event in began if event.HasField("started"))
        number = next(index for index, one in enumerate(stack.replicas) if one.plan.replica_id == place)
        # On a busy machine the stream would end before the others have started.
        stack.replicas[number]._engine.wedge()  # type: ignore[attr-defined]
        engines = [await other_model(stack, tmp_path / f"b{number}") for number in range(3)]
        await stack.kill_replica(number)
        if others:
            assert undisturbed == ids_of(began + await collect(call))
        else:
            error = await failed(call)
            assert "no replica is left with the weights of its output" in str(error.details())
        assert [()] * 3 == [engine.prompts for engine in engines]


async def test_a_stream_of_the_old_model_is_resumed_although_most_replicas_have_the_new_one(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 60.0}) as stack:
        undisturbed = await whole(stack)
        call = stack.inference(0).StreamGenerate(stream_request(max_tokens=60, ignore_eos=True))
        began = await first_tokens(call, 5)
        stand(stack)
        engines = [await other_model(stack, tmp_path / f"b{number}") for number in range(2)]
        for router in stack.routers:
            usual = router.pools["demo"].replicas
            await until(lambda usual=usual: usual.any_announcement().replica_id != "demo-r0")
        asked = stream_request(max_tokens=60, ignore_eos=True)
        token = next(event.started.resume_token for event in began if event.HasField("started"))
        asked.resume.resume_token = token
        asked.resume.received_tokens.append(len(ids_of(began)))
        resumed = stack.inference(1).StreamGenerate(asked)
        rest = [await resumed.read()]
        move_on(stack)
        rest += await collect(resumed)
        call.cancel()
        got = [token for event in rest if event.HasField("delta") for token in event.delta.token_ids]
        assert undisturbed == ids_of(began) + got
        assert [()] * 2 == [engine.prompts for engine in engines]


async def orphaned(stack: Stack, asked: api.StreamGenerateRequest) -> bytes:
    """Have a request wait without a replica at a router that goes; returns its resume token."""
    call = stack.inference(1).StreamGenerate(asked)
    event = await call.read()
    await stack.routers.pop().stop(drain_s=0)
    with pytest.raises(grpc.aio.AioRpcError):
        await collect(call)
    return event.queued.resume_token


@pytest.mark.parametrize("kind", ["text", "ids", "names"])
async def test_what_waited_for_the_old_model_is_resumed_for_the_new_one_only_as_text(tmp_path: Path, kind: str) -> None:
    """Its token has no replica: it says for which tokenizer its prompt was encoded."""
    text = "What is Penstock?"
    asked = of_ids(1, 2, 3, max_tokens=4) if kind == "ids" else stream_request(text, max_tokens=4, ignore_eos=True)
    if kind == "names":
        asked.generate.sampling.stop_token_ids.append(5)
    async with running_stack(tmp_path, routers=2) as stack:
        await collect(stack.inference(1).StreamGenerate(stream_request()))
        await collect(stack.inference(0).StreamGenerate(stream_request()))
        await stack.replicas[0].stop(drain_s=0)
        asked.resume.resume_token = await orphaned(stack, asked)
        engine = await other_model(stack, tmp_path / "b")
        call = stack.inference(0).StreamGenerate(asked)
        if kind == "text":
            events = await collect(call)
            assert 4 == len(ids_of(events))
            wanted = encoded(tmp_path / "b", text)
            assert len(wanted) != len(encoded(MODEL_DIR, text))
            assert len(wanted) == events[-1].finished.usage.prompt_tokens
            assert (wanted,) == engine.prompts
        else:
            error = await failed(call)
            assert ("MODEL_CHANGED", "model changed") == (error_of(error)[0], str(error.details())[11:24])
            assert () == engine.prompts


async def test_a_result_is_told_after_its_model_has_gone(tmp_path: Path) -> None:
    asked = stream_request("What is Penstock?", max_tokens=4, ignore_eos=True)
    asked.generate.idempotency_key = "k"
    async with running_stack(tmp_path, routers=2) as stack:
        events = await collect(stack.inference(0).StreamGenerate(asked))
        token = next(event.started.resume_token for event in events if event.HasField("started"))
        await stack.replicas[0].stop(drain_s=0)
        engine = await other_model(stack, tmp_path / "b")
        asked.resume.resume_token = token
        assert ids_of(events) == ids_of(await collect(stack.inference(1).StreamGenerate(asked)))
        assert () == engine.prompts


async def test_a_resumed_stream_of_ids_goes_on_at_a_sibling_although_most_replicas_have_another_tokenizer(
    tmp_path: Path,
) -> None:
    asked = of_ids(4, 5, 6, max_tokens=60, ignore_eos=True)
    async with running_stack(tmp_path, routers=2, replicas=2, sim={"base_ms": 60.0}) as stack:
        undisturbed = ids_of(await collect(stack.inference().StreamGenerate(asked)))
        first = stack.inference(0).StreamGenerate(asked)
        began = await first_tokens(first, 5)
        started = next(event.started for event in began if event.HasField("started"))
        stand(stack)
        engines = [await other_model(stack, tmp_path / f"b{number}") for number in range(3)]
        replicas = stack.routers[1].pools["demo"].replicas
        await until(lambda: replicas.any_announcement().replica_id not in ("demo-r0", "demo-r1"))
        asked.resume.resume_token = started.resume_token
        asked.resume.received_tokens.append(len(ids_of(began)))
        call = stack.inference(1).StreamGenerate(asked)
        rest = [await call.read()]
        move_on(stack)
        rest += await first_tokens(call, 3)
        number = next(index for index, one in enumerate(stack.replicas) if one.plan.replica_id == started.replica_id)
        await stack.kill_replica(number)
        rest += await collect(call)
        first.cancel()
        got = [token for event in rest if event.HasField("delta") for token in event.delta.token_ids]
        assert undisturbed == ids_of(began) + got
        assert [()] * 3 == [engine.prompts for engine in engines]


async def test_a_fault_while_a_prompt_is_encoded_anew_costs_a_place_and_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = 0
    encode = Catalog.encode

    async def once_broken(self: Catalog, pool: Any, prompt: Any, tenant: str, of: Any = None) -> Any:
        nonlocal faults
        if of is not None and not faults:
            faults += 1
            raise KeyError("a fault of ours")
        return await encode(self, pool, prompt, tenant, of)

    monkeypatch.setattr(Catalog, "encode", once_broken)
    async with running_stack(tmp_path) as stack:
        call, engine = await swapped(stack, tmp_path / "b", stream_request("What is Penstock?", max_tokens=4))
        await collect(call)
        assert (encoded(tmp_path / "b", "What is Penstock?"),) == engine.prompts
        assert 1 == faults
        # Reconciliation would find it in the end, and much later.
        assert not any(stack.routers[0].pools["demo"].reconciler.mended.values())


async def test_a_place_is_kept_while_the_tokenizer_for_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue takes back what is not used within three heartbeats, and would grant it again."""
    there, asked = asyncio.Event(), 0
    encode = Catalog.encode

    async def slow(self: Catalog, pool: Any, prompt: Any, tenant: str, of: Any = None) -> Any:
        nonlocal asked
        if of is not None:
            asked += 1
            await there.wait()
        return await encode(self, pool, prompt, tenant, of)

    monkeypatch.setattr(Catalog, "encode", slow)
    async with running_stack(tmp_path) as stack:
        call, engine = await swapped(stack, tmp_path / "b", stream_request("What is Penstock?", max_tokens=4))
        await until(lambda: asked > 0)
        pool = stack.routers[0].pools["demo"]
        attempt = next(iter(pool.choices.values())).attempt
        for _ in range(6):
            await until(lambda last=pool.beat: pool.beat is not last)
        assert [attempt] == [choice.attempt for choice in pool.choices.values()]
        there.set()
        await collect(call)
        assert (encoded(tmp_path / "b", "What is Penstock?"),) == engine.prompts
        assert 1 == asked


async def test_ids_wait_for_a_busy_replica_that_reads_them_however_often_another_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume_state, "FIRST_PAUSE_S", 0.01)
    async with running_stack(tmp_path, replicas=0, sim={"base_ms": 5.0, "max_num_seqs": 1}) as stack:
        old = Spy(stack.settings.pools["demo"], MODEL_DIR)
        await stack.add_replica("demo", old)
        long = stack.inference().StreamGenerate(stream_request(max_tokens=20_000, ignore_eos=True))
        await first_tokens(long, 2)
        call = stack.inference().StreamGenerate(of_ids(1, 2, 3, max_tokens=4, ignore_eos=True))
        assert (await call.read()).HasField("queued")
        new = await other_model(stack, tmp_path / "b")
        waits = [choice for choice in stack.routers[0].pools["demo"].choices.values() if choice.state.waits]
        await until(lambda: waits[0].resume_state._pauses > REFUSED_RESUMES + 1)
        long.cancel()
        assert 4 == len(ids_of(await collect(call)))
        assert (1, 2, 3) == old.prompts[-1]
        assert () == new.prompts


@pytest.mark.parametrize("second", [0, 1], ids=["same router", "another router"])
@pytest.mark.parametrize("kind", ["ids", "names"])
async def test_a_second_call_with_the_same_key_has_its_ids_read_as_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: int, kind: str
) -> None:
    """It has no token that says how. Most replicas have another tokenizer by now."""
    monkeypatch.setattr(resume_state, "FIRST_PAUSE_S", 0.01)
    asked = of_ids(1, 2, 3, max_tokens=4, ignore_eos=True)
    if kind == "names":
        asked = stream_request("What is Penstock?", max_tokens=4, ignore_eos=True, stop_token_ids=[5])
    asked.generate.idempotency_key = "k"
    sim = {"base_ms": 5.0, "max_num_seqs": 1}
    async with running_stack(tmp_path, routers=2, replicas=0, sim=sim) as stack:
        old = Spy(stack.settings.pools["demo"], MODEL_DIR)
        await stack.add_replica("demo", old)
        long = stack.inference(0).StreamGenerate(stream_request(max_tokens=20_000, ignore_eos=True))
        await first_tokens(long, 2)
        first = stack.inference(0).StreamGenerate(asked)
        assert (await first.read()).HasField("queued")
        before = old.prompts
        new = [await other_model(stack, tmp_path / f"b{number}") for number in range(2)]
        for router in stack.routers:
            replicas = router.pools["demo"].replicas
            await until(lambda replicas=replicas: replicas.any_announcement().replica_id != "demo-r0")
        call = stack.inference(second).StreamGenerate(asked)
        if kind == "names":
            assert "model changed" in str((await failed(call)).details())
            assert before == old.prompts
        else:
            long.cancel()
            assert 4 == len(ids_of(await collect(call)))
            assert (*before, (1, 2, 3)) == old.prompts
        assert [()] * 2 == [engine.prompts for engine in new]
        first.cancel()
        long.cancel()


async def test_a_client_gets_the_new_models_answer(tmp_path: Path) -> None:
    """It had a token for what waited, under which nobody knows the prompt as it is now."""
    async with running_stack(tmp_path) as stack, AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client:
        await client.generate("demo", "Hi", Sampling(max_tokens=1))
        await stack.replicas[0].stop(drain_s=0)
        calls = [
            asyncio.ensure_future(
                client.generate("demo", "What is Penstock?", Sampling(max_tokens=4, ignore_eos=True))
            ),
            asyncio.ensure_future(anext(aiter(ends(client)))),
        ]
        await until(lambda: stack.routers[0].pools["demo"].active == 2)
        engine = await other_model(stack, tmp_path / "b")

        assert [4, 4] == [(await call).usage.output_tokens for call in calls]
        assert 2 == len(engine.prompts)


async def ends(client: AsyncClient) -> AsyncIterator[Finished]:
    async for event in client.stream("demo", "What is Penstock?", Sampling(max_tokens=4, ignore_eos=True)):
        if isinstance(event, Finished):
            yield event


@pytest.mark.parametrize("named", [False, True])
async def test_a_replica_refuses_ids_of_another_tokenizer_and_gets_those_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Where its router does not know better."""
    placement = ReplicaSet.placement
    monkeypatch.setattr(ReplicaSet, "placement", lambda self, link: replace(placement(self, link), tokenizer_digest=""))
    async with running_stack(tmp_path) as stack:
        asked = of_ids(1, 2, 3) if named else stream_request("What is Penstock?", max_tokens=4, ignore_eos=True)
        call, engine = await swapped(stack, tmp_path / "b", asked)
        if named:
            assert "model changed" in str((await failed(call)).details())
            assert () == engine.prompts
        else:
            assert 4 == len(ids_of(await collect(call)))
            assert (encoded(tmp_path / "b", "What is Penstock?"),) == engine.prompts
        await until(lambda: stack.replicas[-1].table.sequences == 0)


async def test_an_older_routers_start_names_no_tokenizer_and_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = pb.Start
    monkeypatch.setattr(pb, "Start", lambda **fields: start(**{**fields, "tokenizer_digest": ""}))
    async with running_stack(tmp_path) as stack:
        assert ids_of(await collect(stack.inference().StreamGenerate(stream_request())))


async def test_what_was_stored_of_another_model_admits_nothing(tmp_path: Path) -> None:
    """The settings name another model at the next start, and its engines still load."""
    async with running_stack(tmp_path) as stack:
        await stack.inference().Generate(request())
        engine, sim = stack.settings.pools["demo"].engine, stack.settings.pools["demo"].sim
    pools = {"demo": {"model": str(with_tokenizer(tmp_path / "b")), "engine": engine.value, "sim": sim.model_dump()}}
    async with running_stack(tmp_path, replicas=0, pools=pools) as stack:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.inference().Generate(request())
        assert grpc.StatusCode.UNAVAILABLE is caught.value.code()
        assert "tokenizer is not known; try again when its first one runs" in str(caught.value.details())
