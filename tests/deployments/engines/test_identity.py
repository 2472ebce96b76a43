from __future__ import annotations

import json
from pathlib import Path

import pytest

from deployments.engines import identity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in {"config.json": "{}", "tokenizer.json": "[1]", "model.safetensors": "weights"}.items():
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_every_part_changes_the_model_digest(folder: Path, name: str) -> None:
    before = identity.model_digest(folder)
    assert identity.model_digest(folder) == before
    (folder / name).write_text("another")
    assert identity.model_digest(folder) != before


@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_what_prepares_images_changes_the_model_digest(folder: Path, name: str) -> None:
    """Else an output could go on with other pixels."""
    before = identity.model_digest(folder)
    (folder / name).write_text('{"image_mean": [0.5, 0.5, 0.5]}')
    found = identity.model_digest(folder)
    (folder / name).write_text('{"image_mean": [0.4, 0.5, 0.5]}')
    assert len({before, found, identity.model_digest(folder)}) == 3


@pytest.mark.parametrize("name", ["chat_template.jinja", "special_tokens_map.json", "added_tokens.json"])
def test_a_file_that_changes_the_tokenizer_changes_the_model_digest(folder: Path, name: str) -> None:
    before = identity.model_digest(folder)
    (folder / name).write_text("{}")
    assert identity.model_digest(folder) != before


def test_files_that_the_engine_does_not_read_change_no_digest(folder: Path) -> None:
    """Repositories often have them beside the newer ones."""
    (folder / "tokenizer_config.json").write_text('{"added_tokens_decoder": {}}')
    before = identity.model_digest(folder)
    for name in ("vocab.json", "merges.txt", "tokenizer.model", "special_tokens_map.json", "README.md"):
        (folder / name).write_text("{}")
    assert identity.model_digest(folder) == before


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer.model", "tiktoken.model", "qwen.tiktoken"])
def test_without_tokenizer_json_the_vocabulary_changes_the_model_digest(folder: Path, name: str) -> None:
    (folder / "tokenizer.json").unlink()
    before = identity.model_digest(folder)
    (folder / name).write_text("{}")
    assert identity.model_digest(folder) != before


def weights(file: Path, shape: list[int], values: bytes) -> None:
    half = len(values) // 2
    tensors = {
        name: {"dtype": "U8", "shape": shape, "data_offsets": [half * at, half * (at + 1)]}
        for at, name in enumerate(("first", "second"))
    }
    head = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    file.write_bytes(len(head).to_bytes(8, "little") + head + values)


@pytest.mark.parametrize("tensor", [0, 1])
def test_large_weights_are_known_by_their_head_and_by_samples_of_every_tensor(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tensor: int
) -> None:
    """Fine-tuned weights have the same head: an output must not go on with them."""
    monkeypatch.setattr(identity, "_WHOLE_FILE_BYTES", 1000)
    monkeypatch.setattr(identity, "_SAMPLE_BYTES", 8)
    file = folder / "model.safetensors"
    size = 100_000
    weights(file, [2, size // 2], bytes(2 * size))
    before = identity.model_digest(folder)
    tuned = bytearray(2 * size)
    tuned[tensor * size : (tensor + 1) * size] = bytes([1]) * size
    weights(file, [2, size // 2], bytes(tuned))
    assert identity.model_digest(folder) != before
    weights(file, [size // 2, 2], bytes(2 * size))
    assert identity.model_digest(folder) != before


@pytest.mark.parametrize("name", ["model.bin", "model.safetensors"])
def test_large_weights_of_another_form_are_sampled_all_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(identity, "_WHOLE_FILE_BYTES", 1000)
    (folder / name).write_bytes(bytes(200_000))
    before = identity.model_digest(folder)
    (folder / name).write_bytes(bytes(100_000) + bytes([7]) * 100_000)
    assert identity.model_digest(folder) != before


def test_names_are_short_and_readable() -> None:
    assert identity.hardware_name("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"
    assert identity.hardware_name("cpu").startswith("cpu-")
    assert identity.group_id("0123456789abcdef", "sim", 2, "bfloat16") == "0123456789ab-sim-tp2-bfloat16"


def test_adapters_count_by_name_and_content(folder: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_text("weights")
    plain = identity.model_digest(folder)
    assert identity.model_digest(folder, {}) == plain
    found = {plain, identity.model_digest(folder, {"poet": adapter}), identity.model_digest(folder, {"p": adapter})}
    (adapter / "adapter_model.safetensors").write_text("others")
    found.add(identity.model_digest(folder, {"poet": adapter}))
    (adapter / "adapter_config.json").write_text('{"r": 4}')
    found.add(identity.model_digest(folder, {"poet": adapter}))
    assert len(found) == 5
