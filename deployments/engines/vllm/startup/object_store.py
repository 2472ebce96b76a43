"""Models in object stores: the format in which vLLM reads them, and what it needs for that."""

from __future__ import annotations

from cluster.errors import EngineStartError
from cluster.settings import PoolSettings
from cluster.sources import SourceKind, source_of
from deployments.engines.object_store import missing_reader

STREAMED = "runai_streamer"
"""vLLM's name for weights that it reads from an object store."""


def load_format(pool: PoolSettings) -> str:
    """Return vLLM's format of the weights: that of the settings, or the one that fits the model's place."""
    own = pool.vllm.load_format
    return STREAMED if own == "auto" and source_of(pool.model).kind is SourceKind.STORE else own


def check_readers(pool: PoolSettings) -> None:
    """Check that the model, and the draft model, can be read from where they are. vLLM's own error comes later and
    names no package.

    Raises:
        EngineStartError: a package is missing.
    """
    draft = pool.vllm.speculative.model if pool.vllm.speculative else ""
    for setting, text in (("model", pool.model), ("vllm.speculative.model", draft)):
        if text and (source := source_of(text)).kind is SourceKind.STORE and (missing := missing_reader(source)):
            raise EngineStartError(f"{setting}: {missing}", final=True)
