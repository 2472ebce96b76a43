"""What a vLLM engine tokenizes with reaches routers, or the engine does not start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from cluster.errors import EngineStartError
from deployments.engines.factory import DEMO_MODEL, resolve_model
from deployments.engines.vllm.startup.tokenizer import files_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TEXTS = ("The router queues requests.", "a <|end|> b", "naïve 漢字 👩‍👩‍👧 1234")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(resolve_model(DEMO_MODEL), tmp_path / "model"))


def config(model: Path) -> Any:
    arguments = pytest.importorskip("vllm.engine.arg_utils")
    return arguments.AsyncEngineArgs(model=str(model), dtype="bfloat16").create_model_config()


def reference(model: Path) -> Any:
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(model)


def test_the_files_make_the_ids_of_the_engines_own_tokenizer(model: Path) -> None:
    files = files_of(config(model))

    encoder = Tokenizer.from_buffer(files["tokenizer.json"])
    assert [reference(model).encode(text) for text in TEXTS] == [encoder.encode(text).ids for text in TEXTS]
    assert (model / "chat_template.jinja").read_bytes() == files["chat_template.jinja"]
    assert reference(model).special_tokens_map == json.loads(files["tokenizer_config.json"])


def test_a_vocabulary_with_merges_becomes_a_tokenizer_json(model: Path) -> None:
    """Engines load such a folder; routers know tokenizer.json alone."""
    content = json.loads((model / "tokenizer.json").read_text())
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in content["model"]["merges"]]
    added = {str(token.pop("id")): token for token in content["added_tokens"]}
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": added}
    (model / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    (model / "merges.txt").write_text("\n".join(("#version: 0.2", *merges)))
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (model / "tokenizer.json").unlink()

    files = files_of(config(model))

    encoder = Tokenizer.from_buffer(files["tokenizer.json"])
    assert [reference(model).encode(text) for text in TEXTS] == [encoder.encode(text).ids for text in TEXTS]
    assert "<|end|>" == json.loads(files["tokenizer_config.json"])["eos_token"]


def test_special_tokens_of_their_own_file_are_sent(model: Path) -> None:
    settings = json.loads((model / "tokenizer_config.json").read_text())
    moved = {name: settings.pop(name) for name in ("bos_token", "eos_token")}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (model / "special_tokens_map.json").write_text(json.dumps(moved))

    assert moved.items() <= json.loads(files_of(config(model))["tokenizer_config.json"]).items()


def test_the_form_of_mistrals_own_library_is_converted_with_its_token_before_a_text(model: Path) -> None:
    library = pytest.importorskip("mistral_common")
    content = json.loads((Path(library.__file__).parent / "data" / "tekken_240911.json").read_text())
    tokens = 400
    specials = content["config"]["default_num_special_tokens"]
    content["vocab"] = content["vocab"][:tokens]
    content["config"] |= {"num_vocab_tokens": tokens, "default_vocab_size": specials + tokens}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    (model / "tekken.json").write_text(json.dumps(content))
    # Weights under this name make it a repository of Mistral's.
    (model / "consolidated.safetensors").hardlink_to(model / "model.safetensors")

    encoder = Tokenizer.from_buffer(files_of(config(model))["tokenizer.json"])

    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    own = Tekkenizer.from_file(model / "tekken.json")
    assert [own.encode(text, bos=True, eos=False) for text in ("Hello  there", "naïve 漢字\n1234")] == [
        encoder.encode(text).ids for text in ("Hello  there", "naïve 漢字\n1234")
    ]


def test_a_model_without_a_tokenizer_does_not_start(model: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    described = config(model)

    with pytest.raises(EngineStartError, match=f"the tokenizer of {model} can't be loaded"):
        files_of(described)
