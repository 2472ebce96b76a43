"""The simulated engine: vLLM's scheduling and timing without a model."""

from deployments.engines.sim.core import BatchCore, CoreLimits, StepResult, Turn
from deployments.engines.sim.engine import SimEngine

__all__ = ["BatchCore", "CoreLimits", "SimEngine", "StepResult", "Turn"]
