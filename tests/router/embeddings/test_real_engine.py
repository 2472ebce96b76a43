"""Vectors, classes and scores of real vLLM engines against those of the same models without vLLM."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from penstock import AsyncClient, InvalidArgumentError, ModelTask, PoolingOptions
from tests.support.pooling_models import make_classifier, minilm, reference_logits, reference_vectors
from tests.support.stack import Stack, running_stack

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.asyncio(loop_scope="module"),
]

LABELS = ("calm", "angry", "sad")
TEXTS = (
    "A penstock carries water to a turbine.",
    "Pipes bring water to turbines.",
    "The cat sleeps on the sofa.",
    "Wie spät ist es?",
    "x",
)


@dataclass(frozen=True)
class Folders:
    """The models' folders."""

    classes: Path
    pairs: Path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(
        make_classifier(tmp_path_factory.mktemp("classes"), LABELS),
        make_classifier(tmp_path_factory.mktemp("pairs"), ("fits",)),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    vllm = {"dtype": "float32", "max_num_seqs": 64}
    pools = {
        # The files name the task of these two. The last setting says what is meant anyway.
        "vectors": {"model": str(minilm()), "vllm": vllm},
        "classes": {"model": str(folders.classes), "vllm": vllm},
        "pairs": {"model": str(folders.pairs), "vllm": vllm, "task": "classify"},
    }
    async with running_stack(tmp_path_factory.mktemp("stack"), pools=pools) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as open_client:
        yield open_client


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / math.hypot(*one) / math.hypot(*other)


async def test_models_tell_their_task_and_features(client: AsyncClient) -> None:
    found = {each.name: each for each in await client.list_models()}
    assert (ModelTask.EMBED, 384, False) == (
        found["vectors"].task,
        found["vectors"].pooling.size,
        found["vectors"].pooling.shorter_vectors,
    )
    assert (ModelTask.CLASSIFY, LABELS) == (found["classes"].task, found["classes"].pooling.labels)
    assert (ModelTask.CLASSIFY, 1) == (found["pairs"].task, found["pairs"].pooling.size)


async def test_vectors_are_those_of_the_model_without_vllm(client: AsyncClient) -> None:
    wanted = reference_vectors(minilm(), TEXTS)
    found = await client.embed("vectors", TEXTS)
    for vector, reference in zip(found.vectors, wanted, strict=True):
        assert cosine(vector, reference) > 0.999
        assert pytest.approx(1.0, abs=1e-4) == math.hypot(*vector)
    assert found.receipt.gpu_seconds > 0


async def test_many_texts_give_the_vectors_that_each_gives_alone(client: AsyncClient) -> None:
    texts = [f"{TEXTS[number % 4]} {number}" for number in range(200)]
    found = await client.embed("vectors", texts)
    assert 2 == len(found.receipt.attempts)
    for number in (0, 127, 128, 199):
        alone = await client.embed("vectors", texts[number])
        assert cosine(alone.vectors[0], found.vectors[number]) > 0.9999


async def test_a_text_that_is_cut_keeps_its_special_tokens(client: AsyncClient) -> None:
    long = "water turbine dam river " * 200
    [wanted] = reference_vectors(minilm(), [long])
    found = await client.embed("vectors", long, options=PoolingOptions(truncate=True))
    assert 256 == found.usage.prompt_tokens
    assert cosine(found.vectors[0], wanted) > 0.999
    with pytest.raises(InvalidArgumentError, match="maximum context length is 256 tokens"):
        await client.embed("vectors", long)


async def test_fewer_dimensions_are_refused_by_name_where_vectors_can_not_be_cut(client: AsyncClient) -> None:
    with pytest.raises(InvalidArgumentError, match="dimensions: is not supported by this model"):
        await client.embed("vectors", "a", dimensions=100)
    assert 384 == len((await client.embed("vectors", "a", dimensions=384)).vectors[0])


async def test_scores_of_a_model_that_embeds_are_cosines(client: AsyncClient) -> None:
    wanted = reference_vectors(minilm(), TEXTS)
    ranked = await client.rerank("vectors", TEXTS[0], TEXTS[1:])
    assert 0 == ranked[0].index
    for each in ranked:
        assert pytest.approx(cosine(wanted[0], wanted[each.index + 1]), abs=2e-3) == each.score


async def test_classes_are_those_of_the_model_without_vllm(client: AsyncClient, folders: Folders) -> None:
    logits = reference_logits(folders.classes, TEXTS)
    own = await client.classify("classes", TEXTS, probabilities=False)
    likely = await client.classify("classes", TEXTS)
    for number, row in enumerate(logits):
        assert pytest.approx(row.tolist(), abs=2e-2, rel=1e-2) == own.values[number]
        assert pytest.approx(row.softmax(dim=0).tolist(), abs=1e-2) == likely.values[number]
    assert tuple(LABELS[int(row.argmax())] for row in logits) == likely.best


async def test_pairs_are_read_together_with_the_second_text_marked(client: AsyncClient, folders: Folders) -> None:
    pairs = [(TEXTS[0], text) for text in TEXTS[1:]]
    logits = reference_logits(folders.pairs, pairs)
    own = await client.score("pairs", TEXTS[0], TEXTS[1:], probabilities=False)
    likely = await client.score("pairs", TEXTS[0], TEXTS[1:])
    for number, row in enumerate(logits):
        assert pytest.approx(row[0].item(), abs=2e-2, rel=1e-2) == own.scores[number]
        assert pytest.approx(row.sigmoid()[0].item(), abs=1e-2) == likely.scores[number]


async def test_an_engine_that_dies_ends_in_an_error_and_not_in_vectors(stack: Stack) -> None:
    """The last test: the engine of the vectors is gone afterwards."""
    import asyncio
    import os
    import signal

    from penstock import PenstockClientError

    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}", timeout=20) as client:
        calls = [
            asyncio.create_task(client.embed("vectors", [f"{n} {TEXTS[0]}" for n in range(600)])) for _ in range(4)
        ]
        await asyncio.sleep(0)
        for pid in stack.engines[0].engine_pids():  # type: ignore[attr-defined]
            os.kill(pid, signal.SIGKILL)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, PenstockClientError) or 600 == len(outcome.vectors)  # type: ignore[union-attr]
