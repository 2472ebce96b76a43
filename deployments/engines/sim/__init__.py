"""The simulated engine: vLLM's scheduling and timing without a model."""

from deployments.engines.sim.core import BatchCore, CoreLimits
from deployments.engines.sim.engine import SimEngine
from deployments.engines.sim.turn import StepResult, Turn

__all__ = ["BatchCore", "CoreLimits", "SimEngine", "StepResult", "Turn"]
