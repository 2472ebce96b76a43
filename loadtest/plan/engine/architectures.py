"""Names of models: hub ids and short names of well-known ones. Other models come as a folder or a config.json."""

from __future__ import annotations

import re
from dataclasses import replace

from cluster.errors import SettingsError
from cluster.nearest import did_you_mean
from cluster.sources import source_of
from loadtest.plan.engine.known_models import KNOWN
from loadtest.plan.engine.shapes import ModelShape, read_config, shape_of

__all__ = ["KNOWN", "find_shape", "is_short", "load_shape"]

_SAME = {
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-v3.1-terminus": "deepseek-v3",
    "deepseek-r1-0528": "deepseek-v3",
    "deepseek-v3-0324": "deepseek-v3",
    "deepseek-v3.2-exp": "deepseek-v3.2",
    "deepseek-v3.2-speciale": "deepseek-v3.2",
    "deepseek-r1-distill-llama-70b": "llama-3.3-70b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-1.5b": "qwen2.5-1.5b",
    "meta-llama-3-8b": "llama-3-8b",
    "meta-llama-3-70b": "llama-3-70b",
    "llama-3.1-nemotron-70b": "llama-3.1-70b",
    "llama-4-scout-17b-16e": "llama-4-scout",
    "llama-4-maverick-17b-128e": "llama-4-maverick",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    "qwq-32b": "qwen2.5-32b",
    "qwen2.5-coder-7b": "qwen2.5-7b",
    "qwen2.5-coder-14b": "qwen2.5-14b",
    "qwen2.5-coder-32b": "qwen2.5-32b",
    "qwen3-embedding-0.6b": "qwen3-0.6b",
    "qwen3-embedding-4b": "qwen3-4b",
    "qwen3-embedding-8b": "qwen3-8b",
    "qwen3-coder-next": "qwen3-next-80b-a3b",
    "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",
    "qwen3.6-27b": "qwen3.5-27b",
    "minimax-m2.1": "minimax-m2",
    "minimax-m2.5": "minimax-m2",
    "kimi-k2-0905": "kimi-k2",
    "qwen3-4b-2507": "qwen3-4b",
    "qwen3-30b-a3b-2507": "qwen3-30b-a3b",
    "qwen3-235b-a22b-2507": "qwen3-235b-a22b",
    "kimi-k2.6": "kimi-k2.5",
    "glm-4.7": "glm-4.6",
    "glm-5.1": "glm-5",
    "mistral-nemo": "mistral-nemo-12b",
    "mistral-nemo-2407": "mistral-nemo-12b",
    "mistral-small-3.1-24b": "mistral-small-3.2-24b",
    "magistral-small": "mistral-small-3.2-24b",
    "devstral-small": "mistral-small-3.2-24b",
    "devstral-small-2507": "mistral-small-3.2-24b",
    "mistral-large": "mistral-large-123b",
    "mistral-large-2407": "mistral-large-123b",
    "mistral-large-2411": "mistral-large-123b",
    "ministral-8b-2410": "ministral-8b",
    "codestral-22b-v0.1": "codestral-22b",
    "yi-1.5-34b": "yi-34b",
    "yi-1.5-6b": "yi-6b",
    "phi-4-reasoning": "phi-4",
    "phi-4-reasoning-plus": "phi-4",
    "phi-3-medium-128k": "phi-3-medium",
    "granite-3.1-8b": "granite-3.3-8b",
    "granite-3.2-8b": "granite-3.3-8b",
    "granite-4.0-h-small-32b": "granite-4.0-h-small",
    "nvidia-nemotron-nano-9b-v2": "nemotron-nano-9b-v2",
    "nvidia-nemotron-3-nano-30b-a3b": "nemotron-3-nano-30b-a3b",
    "c4ai-command-r-08-2024": "command-r-35b",
    "c4ai-command-r-plus": "command-r-plus-104b",
    "c4ai-command-a-03-2025": "command-a-111b",
    "bge-m3": "xlm-roberta-large",
    "bge-reranker-v2-m3": "xlm-roberta-large",
    "multilingual-e5-large": "xlm-roberta-large",
    "bge-base-en-v1.5": "bert-base",
    "bge-large-en-v1.5": "bert-large",
    "e5-large-v2": "bert-large",
    "e5-base-v2": "bert-base",
    "all-minilm-l6-v2": "minilm-l6",
    "gte-modernbert-base": "modernbert-base",
}
_CONTEXTS = {
    "deepseek-r1-distill-qwen-32b": 131_072,
    "deepseek-r1-distill-qwen-14b": 131_072,
    "deepseek-r1-distill-qwen-7b": 131_072,
    "deepseek-r1-distill-qwen-1.5b": 131_072,
    "kimi-k2-0905": 262_144,
    "multilingual-e5-large": 514,
    "qwen3-4b-2507": 262_144,
    "qwen3-30b-a3b-2507": 262_144,
    "qwen3-235b-a22b-2507": 262_144,
    "qwen3-coder-30b-a3b": 262_144,
    "qwen3-embedding-0.6b": 32_768,
}
"""Contexts of models that share the architecture of one of `_SAME` and not its context."""
_INNER = ("-instruct-", "-thinking-", "-it-")
"""Words within a name that say how a model was trained, and nothing of its shape."""
_ENDINGS = re.compile(
    r"-(instruct|chat|hf|base|it|pt|thinking|preview|2506|2503|2501|2507|0905|v0\.\d"
    r"|(?P<precision>fp8-dynamic|fp8-block|fp8-kv|fp8|nvfp4|fp4|mxfp4|bf16|awq-int4|awq|gptq-int8|gptq-int4|gptq|int4|int8"
    r"|quantized\.\w+|w4a16|w8a8|autoround|bnb-4bit))$"
)
_PRECISIONS = (
    ("mxfp4", "mxfp4"), ("fp4", "fp4"), ("fp8", "fp8"), ("bf16", "bf16"), ("int8", "int8"), ("w8a8", "int8"),
    ("w8a16", "int8"), ("awq", "int4"), ("gptq", "int4"), ("int4", "int4"), ("w4a16", "int4"), ("autoround", "int4"),
    ("4bit", "int4"),
)  # fmt: skip
_VERSION = re.compile(r"(llama|qwen|phi|gemma|glm|yi)-?(\d)")


def find_shape(name: str) -> ModelShape | None:
    """Return a well-known model by its hub id or short name; None for an unknown one. Where the name ends with a
    precision, such as -FP8 or -quantized.w4a16, the weights are published in that one.
    """
    plain = name.strip().rstrip("/").rsplit("/", 1)[-1].lower().replace("_", "-")
    precision = ""
    while True:
        for known in dict.fromkeys(_spellings(plain)):
            found = _SAME.get(known, known)
            if found in KNOWN:
                shape = shape_of(found, KNOWN[found])
                shape = replace(shape, context=_CONTEXTS.get(known, shape.context))
                return replace(shape, native=precision, experts_only=False, wide=0, block=0) if precision else shape
        ending = _ENDINGS.search(plain)
        if ending is not None and ending["precision"]:
            precision = precision or _named(ending["precision"])
            plain = plain[: ending.start()]
            continue
        # Other endings may tell models apart, such as -2507, so they go after the words before them.
        shorter = plain
        for word in _INNER:
            shorter = shorter.replace(word, "-")
        if shorter == plain and ending is not None:
            shorter = plain[: ending.start()]
        if shorter == plain:
            return None
        plain = shorter


def is_short(name: str) -> bool:
    """Return whether a name is one that only the planner knows: those of models on hubs have an owner."""
    return "/" not in name.strip() and find_shape(name) is not None


def _spellings(plain: str) -> list[str]:
    own = [plain, plain.removeprefix("meta-"), plain.replace("llama3", "llama-3", 1)]
    version = _VERSION.sub(r"\1-\2", plain, count=1)
    return [*own, version, _VERSION.sub(r"\1\2", plain, count=1), plain.removesuffix("b"), f"{plain}b"]


def _named(ending: str) -> str:
    return next(precision for word, precision in _PRECISIONS if word in ending)


def load_shape(model: str) -> ModelShape:
    """Return the architecture of a folder, a config.json, "demo", or a well-known model.

    Raises:
        SettingsError: the model is none of these.
    """
    if model == "demo":
        from deployments.engines.factory import resolve_model

        # The name is "demo", not the folder of its files.
        return replace(read_config(resolve_model(model)), name=model)
    try:
        source = source_of(model)
    except ValueError as error:
        raise SettingsError(f"model: {error}") from error
    if source.path.exists():
        return read_config(source.path)
    shape = find_shape(model)
    if shape is None:
        near = did_you_mean(model, KNOWN)
        raise SettingsError(
            f"model: {model!r} is no local folder, no config.json and no known model; known: "
            f"{', '.join(sorted(KNOWN))}; any other model can be planned for by its config.json{near}"
        )
    return shape
