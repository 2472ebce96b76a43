"""The scenarios, one module per thing that breaks, and one for real engines."""

from __future__ import annotations

from tests.chaos.scenario import Scenario
from tests.chaos.scenarios import cells, clients, http, launcher, real, redis, registry, replica, rollout, router

ALL: tuple[Scenario, ...] = (
    *router.SCENARIOS,
    *replica.SCENARIOS,
    *redis.SCENARIOS,
    *cells.SCENARIOS,
    *rollout.SCENARIOS,
    *registry.SCENARIOS,
    *launcher.SCENARIOS,
    *clients.SCENARIOS,
    *http.SCENARIOS,
    *real.SCENARIOS,
)
