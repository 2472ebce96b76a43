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


def test_chat_template_changes_the_tokenizer_digest(folder: Path) -> None:
    before = identity.tokenizer_digest(folder)
    (folder / "model.safetensors").write_text("another")
    assert identity.tokenizer_digest(folder) == before
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert identity.tokenizer_digest(folder) != before
    assert [file.name for file in identity.tokenizer_files(folder)] == ["tokenizer.json", "chat_template.jinja"]


def test_large_weights_are_known_by_their_head(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_WHOLE_FILE_BYTES", 100)
    head = json.dumps({"layer": {"shape": [2, 2]}}).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(head).to_bytes(8, "little") + head + b"a" * 200)
    before = identity.model_digest(folder)
    file.write_bytes(len(head).to_bytes(8, "little") + head + b"b" * 200)
    assert identity.model_digest(folder) == before
    other = head.replace(b"2, 2", b"4, 1")
    file.write_bytes(len(other).to_bytes(8, "little") + other + b"a" * 200)
    assert identity.model_digest(folder) != before


def test_names_are_short_and_readable() -> None:
    assert identity.hardware_name("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"
    assert identity.hardware_name("cpu").startswith("cpu-")
    assert identity.group_id("0123456789abcdef", "sim", 2, "bfloat16") == "0123456789ab-sim-tp2-bfloat16"
