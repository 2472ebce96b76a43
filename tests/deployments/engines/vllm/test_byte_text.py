"""Text from the bytes of tokens is that of the Rust library's stream, piece by piece."""

from __future__ import annotations

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.decoders import DecodeStream

from deployments.engines.vllm.text import ByteDecoder, ByteTexts, PlainText, without_prompt

CORPUS = ["The wheel turns.", "Grüße aus Köln! 你好世界 🙂🙂", "def f(x):\n\treturn x\n"] * 3
SPECIAL = ["<s>", "<|end of turn|>"]


def byte_level(decoder: object | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoder or decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<|user turn|>"), AddedToken("ï")])
    return tokenizer


@pytest.mark.parametrize("skip_special", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_the_pieces_are_those_of_the_librarys_stream(seed: int, skip_special: bool) -> None:
    tokenizer, source = byte_level(), random.Random(seed)
    # Single bytes more often than others: these make characters of several tokens, and bytes that are none.
    size = tokenizer.get_vocab_size()
    ids = [source.randrange(size) if source.random() < 0.5 else source.randrange(2, 258) for _ in range(200)]
    prompt = [*tokenizer.encode("The wheel ").ids]

    text = PlainText(ByteTexts(tokenizer).after(prompt, skip_special=skip_special))
    stream = DecodeStream(ids=prompt, skip_special_tokens=skip_special)
    theirs = [stream.step(tokenizer, each) or "" for each in ids]
    assert theirs == [text.feed([each], stop_token=False, last=False) for each in ids]
    assert "" == text.rest()


def test_several_tokens_of_a_step_give_the_text_of_each() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("你好, Köln 🙂").ids
    text = PlainText(ByteTexts(tokenizer).after([0], skip_special=True))
    assert "你好, Köln 🙂" == text.feed([*ids], stop_token=False, last=True)


def test_a_token_that_ends_the_output_has_no_text() -> None:
    tokenizer = byte_level()
    [wheel] = tokenizer.encode("T").ids
    text = PlainText(ByteTexts(tokenizer).after([0], skip_special=False))
    assert "T" == text.feed([wheel, 1], stop_token=True, last=True)
    assert "" == text.feed([], stop_token=False, last=True)


def test_output_completes_the_character_that_its_prompt_has_begun() -> None:
    tokenizer = byte_level()
    [first, *rest] = [tokenizer.token_to_id(each) for each in pre_tokenized("é")]
    text = PlainText(ByteTexts(tokenizer).after([5, first], skip_special=True))
    assert ["é"] == [text.feed([each], stop_token=False, last=True) for each in rest]


def pre_tokenized(text: str) -> str:
    """Return the names of the byte tokens of a text, one character for each."""
    [(name, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    return str(name)


def test_an_unknown_id_has_no_text() -> None:
    text = PlainText(ByteTexts(byte_level()).after([], skip_special=True))
    assert "" == text.feed([1_000_000], stop_token=False, last=False)


def byte_fallback() -> Tokenizer:
    """Return a tokenizer whose byte tokens are only for what no other token has, as those of Llama 2 and Gemma."""
    names = ["<unk>", "▁a", "b", "\ufffd", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


@pytest.mark.parametrize(
    ("prompt", "output", "pieces"),
    [
        (["▁a", "b"], ["b", "▁a"], ["b", " a"]),
        (["▁a", "b", "\ufffd"], ["b", "▁a"], ["b", " a"]),
        (["▁a", "b", "\ufffd", "</s>"], ["b", "▁a"], ["b", " a"]),
        (["▁a", "<0xE4>", "<0xBD>"], ["<0xA0>", "b"], ["你", "b"]),
        (["▁a", "<0xE4>", "<0xBD>"], ["b", "▁a"], ["b", " a"]),
        (["▁a", "<0xE4>", "<0x0A>"], ["b", "▁a"], ["b", " a"]),
        (["\ufffd"], ["\ufffd", "b"], ["", "\ufffdb"]),
    ],
)
def test_output_never_repeats_its_prompt(prompt: list[str], output: list[str], pieces: list[str]) -> None:
    tokenizer = byte_fallback()
    before, after = ([tokenizer.token_to_id(name) for name in names] for names in (prompt, output))
    stream = DecodeStream(ids=before, skip_special_tokens=True)
    decode = without_prompt(lambda each: stream.step(tokenizer, each) or "", tokenizer, before, skip_special=True)
    assert pieces == [decode(each) for each in after]


@pytest.mark.parametrize(
    ("decoder", "exact"),
    [
        (decoders.ByteLevel(), True),
        (decoders.Sequence([decoders.ByteLevel()]), True),
        (decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]), False),
        (decoders.Metaspace(), False),
        (decoders.WordPiece(), False),
    ],
)
def test_only_byte_level_decoders_give_texts_of_bytes_alone(decoder: object, exact: bool) -> None:
    assert exact is ByteTexts(byte_level(decoder)).exact


def test_what_is_held_is_forgotten_once_its_character_is_whole() -> None:
    decoder = ByteDecoder({1: b"\xc3", 2: b"\xa9", 3: b"a"})
    assert ["", "é", "a"] == [decoder.decode(each) for each in (1, 2, 3)]
