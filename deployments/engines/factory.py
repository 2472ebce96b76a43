"""The factory of engines. It imports only the engine that the settings name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cluster.settings import EngineKind, PoolSettings
from cluster.sources import ModelSource, SourceKind, source_of
from deployments.engines.base import Engine

DEMO_MODEL = "demo"
_DEMO_WEIGHTS = Path(__file__).parent.parent / "demo_model" / "weights"


def build_engine(pool: PoolSettings, cpu_cores: Sequence[int] | None = None) -> Engine:
    """Make a pool's engine. Call `start` on it next.

    Args:
        pool: the pool's settings.
        cpu_cores: cores for a CPU engine's ranks; None takes those that the process may use.
    """
    source = model_source(pool)
    if pool.engine is EngineKind.SIM:
        from deployments.engines.sim import SimEngine

        return SimEngine(pool, source.path if source.path.is_dir() else None)
    from deployments.engines.vllm.engine import VllmEngine

    return VllmEngine(pool, source.engine_name, cpu_cores=cpu_cores)


def model_source(pool: PoolSettings) -> ModelSource:
    """Return the place of a pool's model: the shipped folder for "demo", else the one that the settings name."""
    if pool.model == DEMO_MODEL:
        return ModelSource(str(_DEMO_WEIGHTS), SourceKind.FOLDER)
    return source_of(pool.model, pool.revision)


def resolve_model(name: str) -> Path:
    """Return a model's folder: the shipped one for "demo", else a path."""
    return _DEMO_WEIGHTS if name == DEMO_MODEL else Path(name).expanduser().resolve()
