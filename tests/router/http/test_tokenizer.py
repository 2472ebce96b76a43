"""The tokenizer over HTTP, as vLLM's clients ask for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from deployments.engines.factory import resolve_model
from penstock.v1 import types_pb2 as types
from router.http.tokenizer import read_tokenize
from tests.router.http.test_openai import HTTP, base, post
from tests.support.keys import Keys
from tests.support.stack import MODEL, Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "What is Penstock? 🚀"
CHAT = [{"role": "user", "content": "Hi"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), router=HTTP, sim={"max_model_len": 256}) as running:
        yield running


@pytest.fixture(scope="module")
def encoder() -> Tokenizer:
    return Tokenizer.from_file(str(resolve_model(MODEL) / "tokenizer.json"))


async def get(stack: Stack, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(base(stack) + path) as reply:
        return reply.status, json.loads(await reply.read())


@pytest.mark.parametrize("special", [None, True, False])
async def test_a_text_becomes_the_tokens_of_its_own_tokenizer(
    stack: Stack, encoder: Tokenizer, special: bool | None
) -> None:
    body = {"prompt": TEXT, "add_special_tokens": special, "return_token_strs": True}
    status, found, _ = await post(stack, "/tokenize", json=body)
    wanted = encoder.encode(TEXT, add_special_tokens=special is not False)
    assert (200, wanted.ids, wanted.tokens) == (status, found["tokens"], found["token_strs"])
    assert (len(wanted.ids), 256) == (found["count"], found["max_model_len"])


async def test_a_conversation_is_rendered(stack: Stack, encoder: Tokenizer) -> None:
    _, found, _ = await post(stack, "/tokenize", json={"model": "demo", "messages": CHAT})
    assert encoder.decode(found["tokens"], skip_special_tokens=False) == "<|begin|><|user|>Hi<|end|><|assistant|>"
    assert found["token_strs"] is None
    body = {"messages": CHAT, "add_special_tokens": True}
    _, more, _ = await post(stack, "/tokenize", json=body)
    assert [encoder.token_to_id("<|begin|>"), *found["tokens"]] == more["tokens"]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"add_generation_prompt": False}, "<|begin|><|user|>Hi<|end|><|assistant|>Hello<|end|>"),
        ({"add_generation_prompt": True}, "<|begin|><|user|>Hi<|end|><|assistant|>Hello<|end|><|assistant|>"),
        ({"continue_final_message": True}, "<|begin|><|user|>Hi<|end|><|assistant|>Hello"),
        (
            {"continue_final_message": True, "add_generation_prompt": False, "chat_template_kwargs": {"x": 1}},
            "<|begin|><|user|>Hi<|end|><|assistant|>Hello",
        ),
    ],
)
async def test_the_end_of_a_conversation_is_rendered_as_asked(
    stack: Stack, encoder: Tokenizer, more: dict[str, Any], text: str
) -> None:
    nulls = dict.fromkeys(("chat_template", "tools", "media_io_kwargs", "mm_processor_kwargs"))
    body = {"messages": [*CHAT, {"role": "assistant", "content": "Hello"}], "return_token_strs": None, **nulls, **more}
    status, found, _ = await post(stack, "/tokenize", json=body)
    assert (200, text) == (status, encoder.decode(found.get("tokens", ()), skip_special_tokens=False))


async def test_what_changes_the_prompt_is_counted() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    body = {"messages": CHAT, "tools": [tool], "tool_choice": "none", "reasoning_effort": "low"}
    count, ignored = read_tokenize({**body, "frobnicate": 1}, "demo")
    assert (types.TOOL_CHOICE_MODE_NONE, "low", ["f"]) == (
        count.tool_choice.mode, count.reasoning.effort, [each.name for each in count.prompt.chat.tools]
    )  # fmt: skip
    assert ("frobnicate",) == ignored


async def test_tokens_become_their_text(stack: Stack, encoder: Tokenizer) -> None:
    ids = encoder.encode(TEXT).ids
    for body in ({"tokens": ids}, {"model": "demo", "tokens": ids}):
        status, found, _ = await post(stack, "/detokenize", json=body)
        assert (200, {"prompt": f"<|begin|>{TEXT}"}) == (status, found)


async def test_long_texts_have_the_same_tokens_names_and_text(stack: Stack, encoder: Tokenizer) -> None:
    """They are worked on beside the event loop."""
    text = "Water turns the turbine. " * 900
    wanted = encoder.encode(text)
    assert len(wanted.ids) > 4_096
    _, found, _ = await post(stack, "/tokenize", json={"prompt": text, "return_token_strs": True})
    assert (wanted.ids, wanted.tokens, len(wanted.ids)) == (found["tokens"], found["token_strs"], found["count"])
    _, back, _ = await post(stack, "/detokenize", json={"tokens": wanted.ids})
    assert f"<|begin|>{text}" == back["prompt"]
    status, error, _ = await post(stack, "/detokenize", json={"tokens": [*wanted.ids, 10**6, 10**7]})
    assert (400, f"tokens[{len(wanted.ids)}]") == (status, error["error"]["param"])


async def test_the_configuration_names_special_tokens_and_template(stack: Stack) -> None:
    for path in ("/tokenizer_info", "/tokenizer_info?model=demo"):
        status, found = await get(stack, path)
        assert status == 200
        assert ("<|begin|>", "<|end|>") == (found["bos_token"], found["eos_token"])
        assert "PreTrainedTokenizerFast" == found["tokenizer_class"]
        assert "<|assistant|>" in found["chat_template"]
    assert (404, "model_not_found") == _code(await get(stack, "/tokenizer_info?model=none"))


def _code(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "model": 7}, "model"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": CHAT, "add_generation_prompt": "no"}, "add_generation_prompt"),
        (
            "/tokenize",
            {"messages": CHAT, "add_generation_prompt": True, "continue_final_message": True},
            "add_generation_prompt",
        ),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [5, 10**6]}, "tokens[1]"),
    ],
    ids=str,
)
async def test_what_is_wrong_is_named(stack: Stack, path: str, body: dict[str, Any], param: str) -> None:
    status, found, _ = await post(stack, path, json=body)
    assert (400, param) == (status, found["error"]["param"])


async def test_it_needs_a_key_where_there_are_keys(tmp_path: Any) -> None:
    key = Keys(tmp_path / "keys.toml").acme
    sections = {"auth": {"keys_file": str(tmp_path / "keys.toml")}}
    async with running_stack(tmp_path, router=HTTP, sections=sections) as stack:
        assert 401 == (await post(stack, "/tokenize", json={"prompt": "a"}))[0]
        assert 401 == (await get(stack, "/tokenizer_info"))[0]
        headers = {"authorization": f"Bearer {key}"}
        assert 200 == (await post(stack, "/tokenize", json={"prompt": "a"}, headers=headers))[0]
