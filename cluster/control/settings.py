"""Conversion of settings to the values that policies take."""

from __future__ import annotations

import enum

from cluster.settings import ClassSloSettings, ControlSettings, PoolSettings
from penstock.values.slo import ClassSlo, OperatingPoint


class ControlMode(enum.StrEnum):
    """Effect of decisions."""

    OFF = "off"
    """No decision is made."""
    ADVISORY = "advisory"
    """Decisions are made, recorded and exported, and change nothing."""
    ACTIVE = "active"


def operating_point(pool: PoolSettings) -> OperatingPoint:
    """Return the operating point that a pool's settings ask for."""
    return OperatingPoint(
        interactive=_class_slo(pool.slo.interactive),
        standard=_class_slo(pool.slo.standard),
        batch=_class_slo(pool.slo.batch),
        attainment=pool.slo.attainment,
        price_per_gpu_hour=pool.price_per_gpu_hour,
        budget_per_hour=pool.budget_per_hour,
    )


def batch_control_mode(settings: ControlSettings, point: OperatingPoint) -> ControlMode:
    """Return the effect of decisions on the batch limit. Without an ITL SLO there are none to make."""
    if point.itl_p95_s is None:
        return ControlMode.OFF
    return ControlMode.ACTIVE if settings.mode is None else ControlMode(settings.mode)


def _class_slo(settings: ClassSloSettings) -> ClassSlo:
    return ClassSlo(settings.ttft_p99_s, settings.itl_p95_s)
