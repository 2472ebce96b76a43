"""The scenarios, one module per thing that breaks."""

from __future__ import annotations

from tests.chaos.scenario import Scenario
from tests.chaos.scenarios import clients, redis, replica, router

ALL: tuple[Scenario, ...] = (*router.SCENARIOS, *replica.SCENARIOS, *redis.SCENARIOS, *clients.SCENARIOS)
