"""A pool that embeds or classifies gets a model with another tokenizer while inputs wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import Tokenizer as TokenizerFile

from cluster.models import GenerationSpec
from deployments.demo_model import MODEL_DIR
from deployments.engines.base import TokenSink
from deployments.engines.sim.engine import SimEngine
from penstock import AsyncClient
from penstock.v1 import embeddings_pb2, embeddings_pb2_grpc
from tests.router.embeddings.conftest import pool
from tests.support.stack import Stack, running_stack
from tests.support.tiny_model import make_tokenizer
from tests.support.waiting import until

TEXTS = ["What is Penstock?", "and a text"]
MANY = [f"text number {number}" for number in range(300)]
"""Three groups."""


class Spy(SimEngine):
    """Remembers the inputs that it was given."""

    inputs: tuple[tuple[int, ...], ...] = ()

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        """Note the input first."""
        if "#" in sequence_id:
            self.inputs += (tuple(spec.prompt_token_ids),)
        await super().submit(sequence_id, spec, sink)


def encoded(folder: Path, *texts: str) -> set[tuple[int, ...]]:
    tokenizer = TokenizerFile.from_file(str(folder / "tokenizer.json"))
    return {tuple(tokenizer.encode(text).ids) for text in texts}


def other_engine(stack: Stack, folder: Path) -> Spy:
    """Return an engine whose tokenizer is another one."""
    folder.mkdir()
    make_tokenizer(folder)
    return Spy(stack.settings.pools["vectors"], folder)


def other_weights(stack: Stack) -> Spy:
    """Return an engine whose model is another one with the same tokenizer."""
    settings = stack.settings.pools["vectors"]
    shorter = settings.sim.model_copy(update={"max_model_len": settings.sim.max_model_len // 2})
    return Spy(settings.model_copy(update={"sim": shorter}), MODEL_DIR)


async def waiting(stack: Stack, call: Awaitable[Any]) -> asyncio.Future[Any]:
    """Start a call that waits."""
    task = asyncio.ensure_future(call)
    await until(lambda: stack.routers[0].pools["vectors"].active > 0)
    return task


def target(stack: Stack) -> str:
    return f"127.0.0.1:{stack.routers[0].port}"


async def embed(stack: Stack, client: AsyncClient) -> Any:
    return await client.embed("vectors", TEXTS)


async def classify(stack: Stack, client: AsyncClient) -> Any:
    return await client.classify("vectors", TEXTS)


async def score(stack: Stack, client: AsyncClient) -> Any:
    return await client.score("vectors", TEXTS[:1], TEXTS[1:])


@pytest.mark.parametrize(
    ("task", "call"), [("embed", embed), ("classify", classify), ("embed", score)], ids=["embed", "classify", "score"]
)
async def test_text_that_waited_for_the_old_model_is_encoded_anew(
    tmp_path: Path, task: str, call: Callable[[Stack, AsyncClient], Awaitable[Any]]
) -> None:
    async with (
        running_stack(tmp_path, pools={"vectors": pool(task, size=3)}) as stack,
        AsyncClient(target(stack), timeout=60) as client,
    ):
        await call(stack, client)
        await stack.replicas[0].stop(drain_s=0)
        task_of_call = await waiting(stack, call(stack, client))
        engine = other_engine(stack, tmp_path / "b")
        await stack.add_replica("vectors", engine)
        found = await task_of_call
        wanted = encoded(tmp_path / "b", *TEXTS)
        assert wanted == set(engine.inputs)
        assert wanted != encoded(MODEL_DIR, *TEXTS)
        assert sum(map(len, wanted)) == found.usage.prompt_tokens


async def test_pairs_that_waited_are_encoded_anew(tmp_path: Path) -> None:
    async with (
        running_stack(tmp_path, pools={"vectors": pool("classify", size=1)}) as stack,
        AsyncClient(target(stack), timeout=60) as client,
    ):
        await score(stack, client)
        await stack.replicas[0].stop(drain_s=0)
        call = await waiting(stack, score(stack, client))
        engine = other_engine(stack, tmp_path / "b")
        await stack.add_replica("vectors", engine)
        waited = await call
        once = engine.inputs
        again = await score(stack, client)
        assert (waited.usage.prompt_tokens, once) == (again.usage.prompt_tokens, engine.inputs[len(once) :])
        assert 1 == len(once)


async def test_inputs_of_ids_that_waited_are_not_run_on_the_new_model(tmp_path: Path) -> None:
    async with (
        running_stack(tmp_path, pools={"vectors": pool("embed")}) as stack,
        AsyncClient(target(stack), timeout=60) as client,
    ):
        await client.embed("vectors", TEXTS)
        await stack.replicas[0].stop(drain_s=0)
        stub = embeddings_pb2_grpc.EmbeddingServiceStub(stack.channels[0])
        tokens = embeddings_pb2.PoolingInput()
        tokens.tokens.ids.extend((5, 6, 7))
        inputs = [embeddings_pb2.PoolingInput(text=TEXTS[0]), tokens]
        call = await waiting(stack, stub.Embed(embeddings_pb2.EmbedRequest(model="vectors", inputs=inputs)))
        engine = other_engine(stack, tmp_path / "b")
        await stack.add_replica("vectors", engine)
        with pytest.raises(grpc.aio.AioRpcError, match="model changed"):
            await call
        assert () == engine.inputs


async def test_all_groups_of_a_request_are_read_by_one_model(tmp_path: Path) -> None:
    """The second replica has the old tokenizer, and takes groups that the first one's has been given meanwhile."""
    async with (
        running_stack(tmp_path, pools={"vectors": pool("embed")}) as stack,
        AsyncClient(target(stack), timeout=60) as client,
    ):
        await client.embed("vectors", TEXTS)
        await stack.replicas[0].stop(drain_s=0)
        call = await waiting(stack, client.embed("vectors", MANY))
        new, old = other_engine(stack, tmp_path / "b"), Spy(stack.settings.pools["vectors"], MODEL_DIR)
        await stack.add_replica("vectors", new)
        await stack.add_replica("vectors", old)
        found = await call
        by_one = {frozenset(new.inputs), frozenset(old.inputs)} - {frozenset()}
        assert 300 == len(found.vectors)
        assert by_one <= {frozenset(encoded(tmp_path / "b", *MANY)), frozenset(encoded(MODEL_DIR, *MANY))}
        assert 1 == len(by_one)


async def test_a_request_that_the_old_model_has_begun_does_not_go_on_with_the_new_one(tmp_path: Path) -> None:
    """Vectors of two models can't be compared."""
    pools = {"vectors": pool("embed", base_ms=300.0, max_num_seqs=128)}
    async with running_stack(tmp_path, pools=pools) as stack:
        stub = embeddings_pb2_grpc.EmbeddingServiceStub(stack.channels[0])
        inputs = [embeddings_pb2.PoolingInput(text=text) for text in MANY]
        call = await waiting(stack, stub.Embed(embeddings_pb2.EmbedRequest(model="vectors", inputs=inputs)))
        await until(lambda: stack.replicas[0].table.sequences > 0)
        choices = list(stack.routers[0].pools["vectors"].choices.values())
        await until(lambda: any(choice.end is not None for choice in choices))
        await stack.kill_replica(0)
        engine = other_engine(stack, tmp_path / "b")
        await stack.add_replica("vectors", engine)
        with pytest.raises(grpc.aio.AioRpcError, match="model changed"):
            await call
        assert () == engine.inputs


async def test_groups_go_on_in_the_model_of_the_others_though_another_reads_them(tmp_path: Path) -> None:
    """Two idle replicas with one tokenizer are there when the replica of a request is lost."""
    pools = {"vectors": pool("embed", base_ms=1000.0, max_num_seqs=128)}
    async with (
        running_stack(tmp_path, pools=pools) as stack,
        AsyncClient(target(stack), timeout=60) as client,
    ):
        call = await waiting(stack, client.embed("vectors", MANY))
        choices = list(stack.routers[0].pools["vectors"].choices.values())
        await until(lambda: not any(choice.state.waits for choice in choices))
        other, same = other_weights(stack), Spy(stack.settings.pools["vectors"], MODEL_DIR)
        await stack.add_replica("vectors", other)
        await stack.add_replica("vectors", same)
        await until(lambda: any(choice.end is not None for choice in choices))
        await stack.kill_replica(0)
        found = await call
        assert 300 == len(found.vectors)
        assert () == other.inputs


async def test_a_request_begun_in_one_model_does_not_end_in_another_of_its_tokenizer(tmp_path: Path) -> None:
    pools = {"vectors": pool("embed", base_ms=300.0, max_num_seqs=128)}
    async with running_stack(tmp_path, pools=pools) as stack:
        stub = embeddings_pb2_grpc.EmbeddingServiceStub(stack.channels[0])
        inputs = [embeddings_pb2.PoolingInput(text=text) for text in MANY]
        call = await waiting(stack, stub.Embed(embeddings_pb2.EmbedRequest(model="vectors", inputs=inputs)))
        await until(lambda: stack.replicas[0].table.sequences > 0)
        choices = list(stack.routers[0].pools["vectors"].choices.values())
        await until(lambda: any(choice.end is not None for choice in choices))
        await stack.kill_replica(0)
        engine = other_weights(stack)
        await stack.add_replica("vectors", engine)
        with pytest.raises(grpc.aio.AioRpcError, match="model changed"):
            await call
        assert () == engine.inputs
