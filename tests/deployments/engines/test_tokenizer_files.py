"""Routers get the tokenizer that `transformers` makes of a model's folder, wherever the folder keeps its parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from cluster.errors import EngineStartError
from deployments.engines.tokenizer_files import Templates, of_folder, of_tokenizer
from tests.support.tiny_model import make_tokenizer

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
DECODER = {
    str(number): {
        "content": token,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": True,
    }
    for number, token in enumerate(SPECIALS.values())
}


def write(folder: Path, name: str, content: object) -> None:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def configure(folder: Path, **changes: Any) -> None:
    """Change entries of tokenizer_config.json; None removes one."""
    config = json.loads((folder / "tokenizer_config.json").read_text()) | changes
    write(folder, "tokenizer_config.json", {name: value for name, value in config.items() if value is not None})


def everything_in_the_configuration(folder: Path) -> None:
    configure(folder, chat_template="configured")


def special_tokens_in_their_own_file(folder: Path) -> None:
    configure(folder, bos_token=None, eos_token=None, pad_token=None, chat_template="configured")
    write(folder, "special_tokens_map.json", {**SPECIALS, "bos_token": {"content": "<s>", "lstrip": False}})


def another_special_token_in_its_own_file(folder: Path) -> None:
    configure(folder, bos_token="</s>")
    write(folder, "special_tokens_map.json", SPECIALS)


def a_special_tokens_file_that_no_longer_counts(folder: Path) -> None:
    configure(folder, added_tokens_decoder=DECODER, pad_token=None)
    write(folder, "special_tokens_map.json", SPECIALS)


def tokens_as_objects(folder: Path) -> None:
    configure(folder, bos_token={"content": "<s>", "__type": "AddedToken", "special": True}, call_token="<pad>")


def a_template_in_its_own_file(folder: Path) -> None:
    configure(folder, chat_template="configured")
    write(folder, "chat_template.jinja", "own file\n")


def named_templates_in_the_configuration(folder: Path) -> None:
    named = {"tool_use": "for tools", "default": "the default"}
    configure(folder, chat_template=[{"name": name, "template": template} for name, template in named.items()])


def named_templates_without_a_default(folder: Path) -> None:
    configure(folder, chat_template=[{"name": "tool_use", "template": "for tools"}])


def templates_in_files(folder: Path) -> None:
    configure(folder, chat_template="configured")
    write(folder, "chat_template.jinja", "own file")
    write(folder, "additional_chat_templates/tool_use.jinja", "for tools")


def templates_in_files_without_a_default(folder: Path) -> None:
    configure(folder, chat_template="configured")
    write(folder, "additional_chat_templates/tool_use.jinja", "for tools")


def no_template(folder: Path) -> None:
    configure(folder, chat_template=None)


def a_token_beside_the_tokenizer(folder: Path) -> None:
    write(folder, "added_tokens.json", {"<tool>": 1024})


def vocabulary_and_merges(folder: Path) -> None:
    """The layout of GPT-2 and of Qwen, without tokenizer.json."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    write(folder, "vocab.json", model["vocab"])
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    write(folder, "merges.txt", "\n".join(("#version: 0.2", *merges)))
    (folder / "tokenizer.json").unlink()
    configure(folder, tokenizer_class="Qwen2Tokenizer", added_tokens_decoder=DECODER, unk_token=None)


def sentencepiece(folder: Path) -> None:
    """The layout of Llama 2, without tokenizer.json."""
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    words = [word for word in (token.strip("Ġ") for token in vocabulary) if word.isascii() and word.isalpha()]
    sentences = [" ".join(words[start : start + 9]) for start in range(len(words))]
    trainer.train(
        sentence_iterator=iter(sentences),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    (folder / "tokenizer.json").unlink()
    configure(folder, tokenizer_class="LlamaTokenizer", unk_token="<unk>", pad_token=None)


LAYOUTS: tuple[Callable[[Path], None], ...] = (
    everything_in_the_configuration,
    special_tokens_in_their_own_file,
    another_special_token_in_its_own_file,
    a_special_tokens_file_that_no_longer_counts,
    tokens_as_objects,
    a_template_in_its_own_file,
    named_templates_in_the_configuration,
    named_templates_without_a_default,
    templates_in_files,
    templates_in_files_without_a_default,
    no_template,
    a_token_beside_the_tokenizer,
    vocabulary_and_merges,
    sentencepiece,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tokenizer(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_folder_gives_what_transformers_reads_in_it(folder: Path, layout: Callable[[Path], None]) -> None:
    transformers = pytest.importorskip("transformers")
    layout(folder)

    files = of_folder(folder)

    reference = transformers.AutoTokenizer.from_pretrained(folder)
    encoder, config = Tokenizer.from_buffer(files["tokenizer.json"]), json.loads(files["tokenizer_config.json"])
    for text in ("water <s> and wheel", "<tool> a token</s>"):
        assert reference.encode(text) == encoder.encode(text).ids
    tokens = {name: token for name, token in config.items() if name.endswith("_token")}
    assert reference.special_tokens_map == {
        name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()
    }
    try:
        template = reference.get_chat_template(), reference.get_chat_template(tools=[{}])
    except ValueError:
        template = None, None
    assert template == sent_templates(files)


def sent_templates(files: dict[str, bytes]) -> tuple[str | None, str | None]:
    """Return the templates of conversations without and with tools."""
    if "chat_template.jinja" in files:
        template = files["chat_template.jinja"].decode()
        return template, template
    named = json.loads(files["tokenizer_config.json"]).get("chat_template", [])
    found = {each["name"]: each["template"] for each in named}
    return found.get("default"), found.get("tool_use")


def test_special_tokens_of_their_own_file_are_sent(folder: Path) -> None:
    special_tokens_in_their_own_file(folder)

    config = json.loads(of_folder(folder)["tokenizer_config.json"])

    assert "<s>" == config["bos_token"]["content"]
    assert "</s>" == config["eos_token"]


def test_the_template_of_a_processor_comes_first(folder: Path) -> None:
    """The engine's server asks the processor before the tokenizer."""
    a_template_in_its_own_file(folder)
    write(folder, "chat_template.json", {"chat_template": "the processor's"})

    assert ("the processor's", "own file\n") == sent_templates(of_folder(folder))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer_config.json", "{"),
        ("special_tokens_map.json", "[]"),
        ("chat_template.json", "1"),
    ],
)
def test_a_broken_file_is_named(folder: Path, name: str, content: str) -> None:
    write(folder, name, content)

    with pytest.raises(EngineStartError, match=r"can't be read"):
        of_folder(folder)


@pytest.mark.slow
def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match=f"no tokenizer in {tmp_path}"):
        of_folder(tmp_path)


@pytest.mark.slow
def test_the_files_of_a_tokenizer_are_the_same_each_time_it_is_loaded(folder: Path) -> None:
    """Replicas of a pool must agree on the digest, also after one has encoded something."""
    transformers = pytest.importorskip("transformers")
    one, other = (transformers.AutoTokenizer.from_pretrained(folder) for _ in range(2))
    other("some text", truncation=True, max_length=2, padding="max_length")

    assert of_tokenizer(one, Templates("t"), name="m") == of_tokenizer(other, Templates("t"), name="m")


@pytest.mark.slow
def test_a_tokenizer_that_its_file_does_not_repeat_is_refused(folder: Path) -> None:
    """Remote code may do something of its own with the text."""
    transformers = pytest.importorskip("transformers")

    class Lower(transformers.PreTrainedTokenizerFast):  # type: ignore[misc,name-defined]
        def encode(self, text: str, **options: Any) -> Any:
            return super().encode(text.lower(), **options)

    with pytest.raises(EngineStartError, match=r"the tokenizer of m \(Lower\) is not the same .*Hello, world!"):
        of_tokenizer(Lower.from_pretrained(folder), name="m")


@pytest.mark.slow
def test_remote_code_on_top_of_tiktoken_is_converted_with_its_own_pattern(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tiktoken = pytest.importorskip("tiktoken")
    remote = Tiktoken(tmp_path / "tiktoken.model", tiktoken)

    files = of_tokenizer(remote, name="m")

    encoder = Tokenizer.from_buffer(files["tokenizer.json"])
    for text in ("the wheel 12 turns", "a<|end|>b"):
        assert remote.encode(text) == encoder.encode(text).ids
    assert {"eos_token": "<|end|>"} == json.loads(files["tokenizer_config.json"])


@pytest.mark.slow
def test_a_pattern_that_the_conversion_lacks_is_found_out(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    remote = Tiktoken(tmp_path / "tiktoken.model", tiktoken)
    remote.pat_str = r"\s+|\S+"

    with pytest.raises(EngineStartError, match="is not the same"):
        of_tokenizer(remote, name="m")


class Tiktoken:
    """What remote code such as Kimi's has: a file of ranks, a pattern, special tokens."""

    def __init__(self, vocab_file: Path, tiktoken: Any) -> None:
        import base64

        self.vocab_file = str(vocab_file)
        self.pat_str = r"\p{N}|\s?\p{L}+|[^\p{L}\p{N}]"
        self.special_tokens_map = {"eos_token": "<|end|>"}
        ranks = {bytes([byte]): byte for byte in range(256)}
        ranks |= {
            pair: 256 + number for number, pair in enumerate((b"th", b"he", b"the", b" w", b"12", b"ee", b" the"))
        }
        vocab_file.write_text("\n".join(f"{base64.b64encode(token).decode()} {rank}" for token, rank in ranks.items()))
        self._added = {"<|end|>": len(ranks)}
        self._encoding = tiktoken.Encoding("t", pat_str=self.pat_str, mergeable_ranks=ranks, special_tokens=self._added)

    def get_added_vocab(self) -> dict[str, int]:
        return self._added

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._encoding.encode(text, allowed_special="all")
        return ids
