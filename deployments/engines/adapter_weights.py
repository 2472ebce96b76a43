"""Weights of a LoRA adapter, held against the model's.

vLLM copies a matrix that is too small into the corner of a larger one, scales by the rank that the adapter's
configuration names, and computes with what is no number. Such an adapter serves wrong output without a word.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

WEIGHTS_FILE = "adapter_model.safetensors"
_NAME = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
"""Name of a matrix as PEFT writes it."""
_NUMBERS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
"""Types of weights that are as large as the layer. Packed ones are smaller."""
_EXPERTS = ".experts"
"""Part of the names of layers whose experts may share one matrix, with the ranks of all."""

Shape = tuple[int, ...]


def check_weights(folder: Path, rank_of: Callable[[str], int], model: Path | None) -> None:
    """Check the weights of an adapter, if they are in a safetensors file.

    Args:
        folder: the adapter's.
        rank_of: returns the rank that the adapter's configuration gives a layer.
        model: folder of the model, None where it is not known. Layers that it has under another name, or packed, are
            not compared.

    Raises:
        ValueError: they do not fit the configuration or the model, or are no numbers.
    """
    from safetensors import SafetensorError

    file = folder / WEIGHTS_FILE
    if not file.is_file():
        return
    try:
        layers = _layers(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{WEIGHTS_FILE} can't be read: {error}") from error
    wanted = _shapes_of(model, {f"{module}.weight" for module in layers}) if model is not None else {}
    for module, sides in layers.items():
        _check_layer(module, sides, rank_of(module), wanted.get(f"{module}.weight"))


def _layers(file: Path) -> Mapping[str, Mapping[str, Shape]]:
    """Return the shapes of each layer's matrices, A and B."""
    from safetensors import safe_open

    found = defaultdict[str, dict[str, Shape]](dict)
    with safe_open(file, framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - it is no mapping
            matrix = weights.get_tensor(name)
            # Types of one byte have no infinity, and PyTorch no test for them.
            if matrix.element_size() > 1 and not matrix.isfinite().all():
                raise ValueError(f"{name} has numbers that are NaN or infinite")
            if (parts := _NAME.fullmatch(name)) is not None:
                found[parts["module"]][parts["side"]] = tuple(matrix.shape)
    return found


def _check_layer(module: str, sides: Mapping[str, Shape], rank: int, layer: Shape | None) -> None:
    missing = {"A", "B"} - sides.keys()
    if missing:
        raise ValueError(f"{module} has no lora_{missing.pop()}")
    narrow, wide = sides["A"], sides["B"]
    if len(narrow) != 2 or len(wide) != 2:
        # Of experts, a matrix for each.
        return
    if narrow[0] != wide[1]:
        raise ValueError(f"{module}: lora_A has rank {narrow[0]}, and lora_B {wide[1]}")
    if narrow[0] != rank and _EXPERTS not in module:
        raise ValueError(f"{module} has rank {narrow[0]}, and its configuration says {rank}")
    own = wide[0], narrow[1]
    # Some models keep the transpose.
    if layer is not None and own not in (layer, layer[::-1]):
        raise ValueError(
            f"{module} is for a layer of {own[0]} x {own[1]}, and the model's has {layer[0]} x {layer[1]}: "
            "is it an adapter of another model?"
        )


def _shapes_of(model: Path, names: set[str]) -> Mapping[str, Shape]:
    """Return the shapes of those of the model's matrices that are not packed."""
    found: dict[str, Shape] = {}
    with ExitStack() as stack:
        for weights in _opened(model, stack):
            for name in names & set(weights.keys()):
                part = weights.get_slice(name)
                shape = tuple(part.get_shape())
                if len(shape) == 2 and part.get_dtype() in _NUMBERS:
                    found[name] = shape
    return found


def _opened(model: Path, stack: ExitStack) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    for file in sorted(model.glob("*.safetensors")):
        try:
            yield stack.enter_context(safe_open(file, framework="pt"))
        except (SafetensorError, OSError):
            # vLLM will say it of the model, with more words.
            continue
