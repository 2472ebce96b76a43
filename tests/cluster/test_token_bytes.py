"""The bytes of tokens, one after another, are the text."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from cluster.token_bytes import TokenBytes, unfinished

CORPUS = ["The wheel turns.", "Grüße aus Köln! 你好世界 🙂🙂", "don't  stop , said he", "def f(x):\n\treturn x\n"] * 3
SPECIAL = ["<s>", "<|end of turn|>", "</s>"]
SIZE = 400


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece(*, unigram: bool) -> Tokenizer:
    """Return a tokenizer as those of Llama 2 and Gemma, with byte tokens for what the vocabulary lacks."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁", "▁The", "▁wheel", "turn", "s", "▁▁", ".", "K", "ö", "ln", "▁don", "'", "t", "▁return", "\n", "a"]
    names = ["<unk>", "<s>", "</s>", *byte_tokens, *pieces]
    if unigram:
        tokenizer = Tokenizer(models.Unigram([(name, -1.0) for name in names], unk_id=0, byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    else:
        vocabulary = {name: index for index, name in enumerate(names)}
        tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(content=" ", left=1, right=0)]
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer.add_tokens([AddedToken("<|user turn|>")])
    return tokenizer


def metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=SIZE, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=SIZE, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def words() -> Tokenizer:
    """Return a tokenizer without a decoder, which joins words by spaces."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>", *SPECIAL], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


KINDS = {
    "byte level": byte_level,
    "sentencepiece BPE": lambda: sentencepiece(unigram=False),
    "sentencepiece unigram": lambda: sentencepiece(unigram=True),
    "metaspace": metaspace,
    "WordPiece": wordpiece,
    "words": words,
}


@pytest.fixture(params=list(KINDS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return KINDS[request.param]()


def sequences(tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Yield texts, and any ids one after another."""
    for text in (*CORPUS, "", "x", " x", "  two", "Köln🙂", "\x00\t", "<s> and </s>"):
        yield tokenizer.encode(text).ids
    chance = random.Random(7)
    for _ in range(300):
        yield chance.choices(range(tokenizer.get_vocab_size()), k=chance.randint(1, 12))


def test_the_bytes_of_tokens_are_the_text(tokenizer: Tokenizer) -> None:
    table = TokenBytes(tokenizer)
    for ids in sequences(tokenizer):
        joined = b"".join(table[each] for each in ids)
        text = tokenizer.decode(ids, skip_special_tokens=False)
        if ids and tokenizer.id_to_token(ids[0]).startswith("##"):
            # No text begins inside a word.
            continue
        if "\ufffd" not in text:
            # Decoders drop the space before the first word.
            assert text in (joined.decode(), joined.decode().removeprefix(" ")), ids
        elif isinstance(tokenizer.decoder, decoders.ByteLevel):
            assert joined.decode(errors="replace") == text, ids


def test_a_part_of_a_character_is_its_bytes() -> None:
    for tokenizer in (byte_level(), sentencepiece(unigram=False), sentencepiece(unigram=True)):
        table = TokenBytes(tokenizer)
        pieces = [table[each] for each in tokenizer.encode("a🚀").ids]
        assert b"".join(pieces).strip() == "a🚀".encode()
        assert not any("🚀".encode() in piece for piece in pieces)


def test_an_added_token_is_its_name() -> None:
    tokenizer = byte_level()
    table = TokenBytes(tokenizer)
    assert [name.encode() for name in SPECIAL] == [table[tokenizer.token_to_id(name)] for name in SPECIAL]


def test_an_id_without_a_token_has_no_bytes_and_is_not_kept(tokenizer: Tokenizer) -> None:
    table = TokenBytes(tokenizer)
    assert table[1 << 31] == b""
    assert not table


@pytest.mark.parametrize(
    ("data", "rest"),
    [
        (b"", b""),
        (b"a", b""),
        ("aé".encode(), b""),
        (b"a\xc3", b"\xc3"),
        (b"\xff", b""),
        (b"\xbf\xf0\x9f\x99", b"\xf0\x9f\x99"),
    ],
)
def test_unfinished_is_the_beginning_of_a_character_at_the_end(data: bytes, rest: bytes) -> None:
    assert rest == unfinished(data)


def test_special_tokens_have_no_bytes_where_they_are_skipped() -> None:
    tokenizer = byte_level()
    [begin, wheel] = [tokenizer.token_to_id(name) for name in ("<s>", "s")]
    assert (b"<s>", b"s") == tuple(map(TokenBytes(tokenizer).__getitem__, (begin, wheel)))
    assert (b"", b"s") == tuple(map(TokenBytes(tokenizer, skip_special=True).__getitem__, (begin, wheel)))
