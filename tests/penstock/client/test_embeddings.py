"""Both clients' calls to models that embed or classify, on a real router."""

from __future__ import annotations

import asyncio
import inspect
from array import array
from pathlib import Path

import pytest

from penstock import AsyncClient, Client, PoolingOptions, RequestClass
from penstock.values.embeddings import inputs_to_proto, unpack
from tests.support.stack import running_stack, sim_pool

POOLS = {
    "vectors": {**sim_pool(vector_size=8), "task": "embed"},
    "classes": {**sim_pool(vector_size=3), "task": "classify"},
}


@pytest.mark.asyncio
async def test_the_client_for_threads_gets_what_the_one_for_asyncio_gets(tmp_path: Path) -> None:
    async with running_stack(tmp_path, pools=POOLS) as stack:
        target = f"127.0.0.1:{stack.routers[0].port}"
        async with AsyncClient(target) as client:
            vectors = (await client.embed("vectors", ["a b", "c"])).vectors
            classes = (await client.classify("classes", "a b")).values
            ranked = await client.rerank("vectors", "a b", ["c", "a b"])

        def in_a_thread() -> None:
            with Client(target) as other:
                assert vectors == other.embed("vectors", ["a b", "c"]).vectors
                assert classes == other.classify("classes", "a b").values
                assert ranked == other.rerank("vectors", "a b", ["c", "a b"])
                assert ranked[:1] == other.rerank("vectors", "a b", ["c", "a b"], top=1)
                assert tuple(each.score for each in ranked) == tuple(
                    sorted(other.score("vectors", "a b", ["c", "a b"]).scores, reverse=True)
                )

        await asyncio.to_thread(in_a_thread)


@pytest.mark.parametrize("name", ["embed", "classify", "score", "rerank"])
def test_both_clients_take_the_same_arguments(name: str) -> None:
    assert inspect.signature(getattr(Client, name)) == inspect.signature(getattr(AsyncClient, name))


def test_a_vector_is_an_array_of_float32_numbers() -> None:
    assert array("f", [1.0, -0.5]) == unpack(b"\x00\x00\x80?\x00\x00\x00\xbf")


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (b"text", "inputs: must be text"),
        ([b"text"], r"inputs\[0\]: must be text or token ids"),
        (["a", [1, -1]], r"inputs\[1\]\.tokens\.ids\[1\]"),
        ([5], r"inputs\[0\]"),
    ],
)
def test_a_wrong_input_is_named(inputs: object, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        inputs_to_proto("inputs", inputs)  # type: ignore[arg-type]


def test_options_become_a_message_that_has_only_what_was_set() -> None:
    wire = PoolingOptions(truncate_to=5, truncate_beginning=True, request_class=RequestClass.BATCH).to_proto()
    assert 5 == wire.truncation.max_tokens
    assert "truncation { max_tokens: 5 side: TRUNCATION_SIDE_BEGINNING }" in " ".join(str(wire).split())
    assert not PoolingOptions().to_proto().HasField("truncation")
    assert PoolingOptions(truncate=True).to_proto().HasField("truncation")
