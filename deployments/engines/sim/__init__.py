"""The simulated engine: vLLM's scheduling and timing without a model."""

from deployments.engines.sim.core import BatchCore
from deployments.engines.sim.engine import SimEngine
from deployments.engines.sim.limits import CoreLimits
from deployments.engines.sim.turn import NO_PARTS, Parts, StepResult, Turn

__all__ = ["NO_PARTS", "BatchCore", "CoreLimits", "Parts", "SimEngine", "StepResult", "Turn"]
