"""The factory of engines. It imports only the engine that the settings name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cluster.settings import EngineKind, PoolSettings
from deployments.engines.base import Engine

DEMO_MODEL = "demo"
_DEMO_WEIGHTS = Path(__file__).parent.parent / "demo_model" / "weights"


def build_engine(pool: PoolSettings, cpu_cores: Sequence[int] | None = None) -> Engine:
    """Make a pool's engine. Call `start` on it next.

    Args:
        pool: the pool's settings.
        cpu_cores: cores for a CPU engine's ranks; None takes those that the process may use.
    """
    model = resolve_model(pool.model)
    if pool.engine is EngineKind.SIM:
        from deployments.engines.sim import SimEngine

        return SimEngine(pool, model if model.is_dir() else None)
    from deployments.engines.vllm.engine import VllmEngine

    return VllmEngine(pool, model, cpu_cores=cpu_cores)


def resolve_model(name: str) -> Path:
    """Return a model's folder: the shipped one for "demo", else a local one. A hub id is returned unchanged."""
    if name == DEMO_MODEL:
        return _DEMO_WEIGHTS
    folder = Path(name).expanduser()
    return folder.resolve() if folder.is_dir() else Path(name)
