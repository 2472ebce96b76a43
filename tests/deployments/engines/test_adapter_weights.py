"""Weights of adapters that vLLM would serve with, wrongly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from deployments.engines.adapter_weights import WEIGHTS_FILE, check_weights

LAYER = "model.layers.0.self_attn.q_proj"
NAME = f"base_model.model.{LAYER}"


def matrices(name: str = NAME, *, inputs: int = 6, outputs: int = 4, rank: int = 2) -> dict[str, torch.Tensor]:
    return {f"{name}.lora_A.weight": torch.ones(rank, inputs), f"{name}.lora_B.weight": torch.ones(outputs, rank)}


def written(folder: Path, weights: Mapping[str, torch.Tensor]) -> Path:
    folder.mkdir()
    save_file(dict(weights), folder / WEIGHTS_FILE)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Files of a model: of two shards, one is no weights."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({f"{LAYER}.weight": torch.ones(4, 6, dtype=torch.bfloat16)}, folder / "model-00001.safetensors")
    (folder / "model-00002.safetensors").write_bytes(b"no weights")
    return folder


@pytest.mark.parametrize(
    "weights",
    [
        matrices(),
        # Models such as GPT-2 keep the transpose.
        matrices(inputs=4, outputs=6),
        # A layer that the model calls otherwise.
        matrices("base_model.model.language_model.q_proj", inputs=50, outputs=70),
        # Experts with a matrix for all of them.
        matrices("base_model.model.mlp.experts", rank=8),
        # Experts with a matrix each, and what is not a pair of matrices.
        {"a.experts.lora_A.weight": torch.ones(3, 2, 6), "a.experts.lora_B.weight": torch.ones(3, 4, 2)},
        {"base_model.model.score.weight": torch.ones(3, 6)},
        {name: matrix.to(torch.float8_e4m3fn) for name, matrix in matrices().items()},
    ],
    ids=["fits", "transposed", "unknown", "experts", "experts_3d", "score", "float8"],
)
def test_weights_that_fit_or_are_not_known_pass(tmp_path: Path, model: Path, weights: dict[str, torch.Tensor]) -> None:
    check_weights(written(tmp_path / "adapter", weights), lambda _module: 2, model)


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        (
            matrices(inputs=3),
            f"{LAYER} is for a layer of 4 x 3, and the model's has 4 x 6: is it an adapter of another",
        ),
        (matrices(outputs=9), f"{LAYER} is for a layer of 9 x 6, and the model's has 4 x 6: is it an adapter of"),
        (matrices(rank=3), f"{LAYER} has rank 3, and its configuration says 2"),
        (
            {**matrices(), f"{NAME}.lora_B.weight": torch.ones(4, 3)},
            f"{LAYER}: lora_A has rank 2, and lora_B 3",
        ),
        ({f"{NAME}.lora_A.weight": torch.ones(2, 6)}, f"{LAYER} has no lora_B"),
        ({f"{NAME}.lora_B.weight": torch.ones(4, 2)}, f"{LAYER} has no lora_A"),
        (
            {**matrices(), f"{NAME}.lora_A.weight": torch.full((2, 6), torch.nan)},
            f"{NAME}.lora_A.weight has numbers that are NaN or infinite",
        ),
        (
            {**matrices(), f"{NAME}.lora_B.weight": torch.full((4, 2), torch.inf, dtype=torch.float16)},
            f"{NAME}.lora_B.weight has numbers that are NaN or infinite",
        ),
    ],
    ids=["inputs", "outputs", "rank", "ranks", "no_b", "no_a", "nan", "infinite"],
)
def test_weights_that_would_serve_wrongly_are_refused_by_name(
    tmp_path: Path, model: Path, weights: dict[str, torch.Tensor], told: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        check_weights(written(tmp_path / "adapter", weights), lambda _module: 2, model)


def test_a_file_that_is_no_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / WEIGHTS_FILE).write_bytes(b"no weights")
    with pytest.raises(ValueError, match=rf"{WEIGHTS_FILE} can't be read: "):
        check_weights(tmp_path, lambda _module: 2, None)


def test_a_packed_layer_and_a_model_that_is_not_there_are_not_compared(tmp_path: Path, model: Path) -> None:
    save_file({f"{LAYER}.weight": torch.ones(4, 3, dtype=torch.uint8)}, model / "model-00001.safetensors")
    adapter = written(tmp_path / "adapter", matrices())
    for folder in (model, None):
        check_weights(adapter, lambda _module: 2, folder)
    # Another form of weights is vLLM's to read.
    (adapter / WEIGHTS_FILE).rename(adapter / "adapter_model.bin")
    check_weights(adapter, lambda _module: 9, model)
