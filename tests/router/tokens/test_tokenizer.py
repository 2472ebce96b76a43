"""Prompts become the ids that the model's own files say."""

import ctypes
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import models, pre_tokenizers

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


@pytest.fixture
def words() -> dict[str, bytes]:
    """A tokenizer of whole words: one of 27 letters, and of single letters."""
    vocabulary = {"<unk>": 0, "a" * 27: 1, "b": 2}
    encoder = Encoder(models.WordLevel(vocabulary, unk_token="<unk>"))
    encoder.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return {"tokenizer.json": encoder.to_str().encode()}


async def test_a_text_that_is_far_too_long_is_refused_by_its_beginning(words, executor, monkeypatch):
    tokenizer, lengths = Tokenizer(words, executor), []
    encode = tokenizer._ids
    monkeypatch.setattr(tokenizer, "_ids", lambda text, *more: lengths.append(len(text)) or encode(text, *more))

    with pytest.raises(InvalidRequestError, match="prompt is too long: about 1000000 tokens > 999 maximum") as caught:
        await tokenizer.encode_prompt(TextPrompt("b " * 1_000_000), 1_000)
    assert [8_000] == lengths
    assert ["prompt"] == [each.field for each in caught.value.violations]


@pytest.mark.parametrize("text", [f"{'a' * 27} " * 1_500, "b " * 4_000], ids=["long tokens", "not far"])
async def test_a_text_that_may_fit_is_encoded_as_a_whole(words, executor, text):
    """The first has fewer tokens than the context, and 42 letters for each of its tokens."""
    assert text.count(" ") == len(await Tokenizer(words, executor).encode_prompt(TextPrompt(text), 1_000))


async def test_without_a_context_all_is_encoded(words, executor):
    assert 100_000 == len(await Tokenizer(words, executor).encode_prompt(TextPrompt("b " * 100_000)))


async def test_the_template_counts_as_well(files, executor):
    with pytest.raises(InvalidRequestError, match="prompt is too long: about"):
        await Tokenizer(files, executor).encode_prompt(ChatPrompt((Message("user", LONG),)), 400)


MEMORY = """
import asyncio, pathlib, psutil, sys
from concurrent.futures import ThreadPoolExecutor
from router.tokens import Tokenizer
rss = lambda: psutil.Process().memory_info().rss / 1e6
with ThreadPoolExecutor(2) as executor:
    tokenizer = Tokenizer({"tokenizer.json": pathlib.Path(sys.argv[1]).read_bytes()}, executor)
    async def encode(text, times=1):
        found = await asyncio.gather(*(tokenizer.encode(text) for _ in range(times)))
        return sum(map(len, found))
    asyncio.run(encode("the wheel " * 1_000, 2))
    before = rss()
    count = asyncio.run(encode("the wheel " * 220_000, 4))
    print(count, rss() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc gives memory back: NOT tested")
def test_the_memory_of_large_texts_goes_back(files, tmp_path):
    """Each takes a hundred megabytes and more while it is encoded."""
    (tmp_path / "tokenizer.json").write_bytes(files["tokenizer.json"])
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "tokenizer.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    tokens, grown = map(float, done.stdout.split())
    assert tokens > 1_000_000
    assert grown < 60
