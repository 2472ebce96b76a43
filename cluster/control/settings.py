"""From the settings to what policies take."""

from __future__ import annotations

import enum

from cluster.settings import ClassSloSettings, ControlSettings, PoolSettings
from penstock.values.slo import ClassSlo, OperatingPoint


class ControlMode(enum.StrEnum):
    """Says what becomes of decisions."""

    OFF = "off"
    """None are made."""
    ADVISORY = "advisory"
    """They are made, recorded and exported, and change nothing."""
    ACTIVE = "active"


def operating_point(pool: PoolSettings) -> OperatingPoint:
    """Return what a pool is run for."""
    return OperatingPoint(
        interactive=_class_slo(pool.slo.interactive),
        standard=_class_slo(pool.slo.standard),
        batch=_class_slo(pool.slo.batch),
        attainment=pool.slo.attainment,
        price_per_gpu_hour=pool.price_per_gpu_hour,
        budget_per_hour=pool.budget_per_hour,
    )


def batch_control_mode(settings: ControlSettings, point: OperatingPoint) -> ControlMode:
    """Return what becomes of decisions on the batch limit; without an ITL SLO there are none to make."""
    if point.itl_p95_s is None:
        return ControlMode.OFF
    return ControlMode.ACTIVE if settings.mode is None else ControlMode(settings.mode)


def _class_slo(settings: ClassSloSettings) -> ClassSlo:
    return ClassSlo(settings.ttft_p99_s, settings.itl_p95_s)
