"""A pool gets a model with another tokenizer: token ids of the old one mean another text to the new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.models import GenerationSpec
from deployments.engines.base import TokenSink
from deployments.engines.sim.engine import SimEngine
from penstock.client import AsyncClient, Finished, Sampling
from penstock.internal.v1 import replica_pb2 as pb
from router.links.replicas import ReplicaSet
from tests.support.stack import Stack, collect, ids_of, request, running_stack, stream_request
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


async def waiting(stack: Stack) -> Any:
    """Open a stream that waits."""
    call = stack.inference().StreamGenerate(stream_request())
    await until(lambda: stack.routers[0].pools["demo"].active == 1)
    return call


async def swapped(stack: Stack, folder: Path) -> tuple[grpc.aio.AioRpcError, Any]:
    """Replace the only model while a request waits; returns how that ended, and the new engine."""
    await collect(stack.inference().StreamGenerate(stream_request()))
    await stack.replicas[0].stop(drain_s=0)
    call = await waiting(stack)
    engine = await other_model(stack, folder)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    assert grpc.StatusCode.UNAVAILABLE is caught.value.code()
    return caught.value, engine


async def test_what_waited_for_the_old_model_does_not_run_on_the_new_one(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        error, engine = await swapped(stack, tmp_path / "b")
        assert "model changed" in str(error.details())
        assert () == engine.prompts
        # The slot is free, and who comes now is tokenized for the new one.
        assert ids_of(await collect(stack.inference().StreamGenerate(stream_request())))
        await until(lambda: stack.replicas[-1].table.sequences == 0)


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


async def test_a_replica_refuses_ids_of_another_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its router does not know better."""
    placement = ReplicaSet.placement
    monkeypatch.setattr(ReplicaSet, "placement", lambda self, link: replace(placement(self, link), tokenizer_digest=""))
    async with running_stack(tmp_path) as stack:
        _, engine = await swapped(stack, tmp_path / "b")
        assert () == engine.prompts


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
        assert "tokenizer is not known" in str(caught.value.details())
