"""The precision of CPU engines whose settings leave it open."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.settings import PoolSettings, VllmSettings
from deployments.engines.vllm.startup import precision


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(bytes(4096))
    return tmp_path


def pool(**vllm: object) -> PoolSettings:
    return PoolSettings(model="demo", vllm=VllmSettings(**vllm))  # type: ignore[arg-type]


def on_cpu(monkeypatch: pytest.MonkeyPatch, flags: str) -> None:
    monkeypatch.setattr(precision, "cpu_flags", lambda: flags)


def test_without_instructions_for_bfloat16_float32_is_taken(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    on_cpu(monkeypatch, "flags : fma avx2 avx512f avx512_vnni")
    asked = pool(max_num_seqs=7)
    found = precision.settled(asked, model)
    assert found.vllm.dtype == "float32"
    assert found.vllm.max_num_seqs == 7
    assert asked.vllm.dtype == "auto"


@pytest.mark.parametrize("flags", ["flags : avx512f avx512_bf16", "flags : amx_bf16 amx_tile", "Features : asimd bf16"])
def test_with_them_the_model_keeps_its_own(monkeypatch: pytest.MonkeyPatch, model: Path, flags: str) -> None:
    on_cpu(monkeypatch, flags)
    assert precision.settled(pool(), model).vllm.dtype == "auto"


@pytest.mark.parametrize("asked", [{"dtype": "bfloat16"}, {"quantization": "awq"}])
def test_what_is_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch, model: Path, asked: dict[str, str]) -> None:
    on_cpu(monkeypatch, "flags : avx2")
    assert precision.settled(pool(**asked), model) == pool(**asked)


def test_weights_too_large_for_twice_their_size_keep_theirs(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    on_cpu(monkeypatch, "flags : avx2")
    total = precision.psutil.virtual_memory().total
    for size, dtype in ((total // 8 - 1, "float32"), (total // 8 + 1, "auto")):
        monkeypatch.setattr(precision, "weights_bytes", lambda _, size=size: size)
        assert precision.settled(pool(), model).vllm.dtype == dtype


def test_unknown_weights_keep_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu(monkeypatch, "")
    assert precision.settled(pool(), "some/hub-id").vllm.dtype == "auto"


def test_flags_of_this_machine_are_found() -> None:
    assert precision.cpu_flags()
