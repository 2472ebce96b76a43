"""Prompts become the ids that the model's own files say."""

import json
from dataclasses import replace

import pytest
from tokenizers import Tokenizer as Encoder

from cluster.errors import InvalidRequestError
from router.tokens import Tokenizer
from router.tokens.tokenizer import INLINE_CHARACTERS
from router.validation import ChatPrompt, Message, TextPrompt, TokenPrompt

LONG = "the wheel turns " * 1_000


def plain(files: dict[str, bytes], text: str) -> list[int]:
    """Encode without Penstock and without special tokens."""
    encoder = Encoder.from_buffer(files["tokenizer.json"])
    encoder.no_truncation()
    encoder.no_padding()
    return encoder.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", ["the wheel", "", "é ↯ \x00", LONG], ids=["short", "empty", "bytes", "long"])
async def test_plain_text_gets_the_special_tokens_of_the_post_processor(files, executor, text):
    assert await Tokenizer(files, executor).encode(text) == [0, *plain(files, text)]


async def test_files_that_truncate_and_pad_do_neither(files, executor):
    """The trained file asks for truncation to 8 tokens and padding up to 8."""
    tokenizer = Tokenizer(files, executor)

    assert len(await tokenizer.encode("a" * 50)) > 8
    assert len(await tokenizer.encode("")) == 1


@pytest.mark.parametrize("content", ["hi", LONG], ids=["short", "long"])
async def test_conversations_get_only_the_special_tokens_of_the_template(files, executor, content):
    ids = await Tokenizer(files, executor).encode_chat(ChatPrompt((Message("user", content),)))

    assert ids == plain(files, f"<s><|user|>{content}</s><|assistant|>")
    assert ids.count(0) == 1


async def test_long_text_leaves_the_event_loop(files):
    """Short text stays on the loop, because the hop costs more."""
    submitted = []

    class Spy:
        def submit(self, call, *args):
            from concurrent.futures import Future

            submitted.append(call)
            done: Future = Future()
            done.set_result(call(*args))
            return done

    tokenizer = Tokenizer(files, Spy())
    await tokenizer.encode("x" * INLINE_CHARACTERS)
    await tokenizer.encode_chat(ChatPrompt((Message("user", "x"),)))
    assert submitted == []

    await tokenizer.encode("x" * (INLINE_CHARACTERS + 1))
    await tokenizer.encode_chat(ChatPrompt((Message("user", "x" * (INLINE_CHARACTERS + 1)),)))
    await tokenizer.encode_chat(ChatPrompt((Message("user", "x"),) * 17))
    assert len(submitted) == 3


async def test_every_form_of_prompt_is_encoded(files, executor):
    tokenizer = Tokenizer(files, executor)
    chat = ChatPrompt((Message("user", "hi"),))

    assert await tokenizer.encode_prompt(TextPrompt("hi")) == await tokenizer.encode("hi")
    assert await tokenizer.encode_prompt(chat) == await tokenizer.encode_chat(chat)
    continued = replace(chat, continue_final=True)
    assert await tokenizer.encode_prompt(continued) == await tokenizer.encode_chat(continued)
    assert await tokenizer.encode_prompt(TokenPrompt((5, 6))) == (5, 6)


@pytest.mark.parametrize(
    "changed",
    [
        {"tokenizer_config.json": b"{}"},
        {"tokenizer_config.json": json.dumps({"chat_template": "{% broken"}).encode()},
        {"tokenizer_config.json": b'{"chat_template": []}'},
        {"tokenizer_config.json": b'{"chat_template": [{"name": []}]}'},
        {"tokenizer_config.json": b"{"},
        {"tokenizer_config.json": b"[]"},
        {"tokenizer_config.json": b"[" * 100_000},
        {"tokenizer_config.json": b"\xff"},
        {"chat_template.jinja": b"caf\xe9"},
        {"chat_template.jinja": b"{{ " + b"(" * 10_000},
    ],
    ids=lambda changed: str(*changed.values())[:40],
)
async def test_a_model_without_a_usable_template_refuses_conversations_only(files, executor, changed):
    tokenizer = Tokenizer({**files, **changed}, executor)

    assert not tokenizer.has_chat_template
    assert await tokenizer.encode("hi")
    with pytest.raises(InvalidRequestError) as caught:
        await tokenizer.encode_chat(ChatPrompt((Message("user", "hi"),)))
    assert caught.value.violations[0].field == "prompt.chat"


async def test_a_broken_template_is_called_so(files, executor):
    tokenizer = Tokenizer({**files, "chat_template.jinja": b"{% broken"}, executor)

    with pytest.raises(InvalidRequestError, match=r"chat template is broken \(.*'broken'"):
        await tokenizer.encode_chat(ChatPrompt((Message("user", "hi"),)))


@pytest.mark.parametrize("broken", [{}, {"tokenizer.json": b"{"}])
def test_broken_files_are_refused(files, executor, broken):
    with pytest.raises(ValueError, match=r"token|Expecting"):
        Tokenizer({**files, **broken} if broken else {}, executor)


def test_added_tokens_count_for_the_vocabulary(files, executor):
    assert Tokenizer(files, executor).vocabulary_size == Encoder.from_buffer(files["tokenizer.json"]).get_vocab_size()
