"""The exact identity of the model that an engine runs, so that only equal replicas work together."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from cluster import digests

_CONFIG_FILES = (
    *("config.json", "generation_config.json", "adapter_config.json"),
    # Of models that take images.
    *("preprocessor_config.json", "processor_config.json"),
)
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")
_TOKEN_MAPS = ("added_tokens.json", "special_tokens_map.json")
_VOCABULARIES = ("merges.txt", "tekken.json", "vocab.json", "vocab.txt")
_VOCABULARY_SUFFIXES = (".model", ".tiktoken")
_WHOLE_FILE_BYTES = 64 << 20
"""Weight files below this size are hashed whole. Reading hundreds of gigabytes would double the time of a start."""
_HEAD_BYTES = 1 << 20
_SAMPLE_BYTES = 4096
_SAMPLES = 256
"""Samples taken of a file whose tensors are not known."""


def model_digest(folder: Path, adapters: Mapping[str, Path] | None = None, weights_url: str = "") -> str:
    """Return the SHA-256, in hex, over configuration, weights, tokenizer and adapters.

    Of a large weight file, the digest covers name, size, head and samples of every tensor. The head alone would not do:
    fine-tuned weights have the same one.

    Args:
        folder: the model's folder.
        adapters: folder of each LoRA adapter, by the adapter's name.
        weights_url: place of the weights in an object store, if they are in one. They are never read for a digest, so
            other weights need another URL.
    """
    digest = _digest([*_configs(folder), *_weights(folder), *_tokenizer(folder)])
    if weights_url:
        digest = hashlib.sha256(f"{digest}\0{weights_url}".encode()).hexdigest()
    if not adapters:
        return digest
    parts = [f"{name}\0{_digest([*_configs(each), *_weights(each)])}" for name, each in sorted(adapters.items())]
    return hashlib.sha256("\0".join([digest, *parts]).encode()).hexdigest()


def group_id(digest: str, hardware: str, tensor_parallel_size: int, dtype: str) -> str:
    """Return the name of the group of replicas whose outputs are comparable."""
    return f"{digest[:12]}-{hardware}-tp{tensor_parallel_size}-{dtype}"


def hardware_name(device: str) -> str:
    """Return a short name for the hardware: the GPU's, or "cpu-" and the processor's.

    Args:
        device: vLLM's device name; "cpu" on a CPU.
    """
    if device.lower() != "cpu":
        return _slug(device)
    return f"cpu-{_slug(_processor())}"


def _configs(folder: Path) -> list[Path]:
    return [folder / name for name in _CONFIG_FILES if (folder / name).is_file()]


def _weights(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix in _WEIGHT_SUFFIXES)


def _tokenizer(folder: Path) -> list[Path]:
    """Return the files that the engine makes its tokenizer of: those that count where several say the same."""
    found = [folder / name for name in digests.TOKENIZER_FILES if (folder / name).is_file()]
    others = [file for file in sorted(folder.iterdir()) if file.is_file() and file not in found]
    if not (folder / "tokenizer.json").is_file():
        found += [file for file in others if file.name in _VOCABULARIES or file.suffix in _VOCABULARY_SUFFIXES]
    config = folder / "tokenizer_config.json"
    if not config.is_file() or b'"added_tokens_decoder"' not in config.read_bytes():
        found += [file for file in others if file.name in _TOKEN_MAPS]
    return found


def _digest(files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        total.update(f"{file.name}\0{size}\0".encode())
        total.update(_content(file, size))
    return total.hexdigest()


def _content(file: Path, size: int) -> bytes:
    with file.open("rb") as stream:
        if size < _WHOLE_FILE_BYTES:
            return stream.read()
        head = stream.read(8)
        length = int.from_bytes(head, "little") if file.suffix == ".safetensors" else _HEAD_BYTES
        head += stream.read(min(length, _WHOLE_FILE_BYTES))
        places = _tensor_places(head) or [size * part // _SAMPLES for part in range(_SAMPLES)]
        parts = [head]
        for place in places:
            stream.seek(place)
            parts.append(stream.read(_SAMPLE_BYTES))
        return b"".join(parts)


def _tensor_places(head: bytes) -> list[int]:
    """Return the positions of begin and middle of every tensor of a safetensors file; empty for another file."""
    try:
        spans = [each["data_offsets"] for name, each in json.loads(head[8:]).items() if name != "__metadata__"]
        return sorted(len(head) + place for low, high in spans for place in (low, (low + high) // 2))
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2]
    except OSError:
        pass
    return platform.machine()


def _slug(text: str) -> str:
    plain = re.sub(r"\((r|tm)\)|\bcpu\b|\bprocessor\b", " ", text.lower())
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-")[:40].rstrip("-")
