"""The short set, on one cluster of real processes that is made whole between scenarios. `make chaos` runs them all."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.chaos.cluster import ChaosCluster, ClusterPlan
from tests.chaos.run import run_on, running_cluster
from tests.chaos.scenario import Scenario
from tests.chaos.scenarios import ALL

# Recovery is measured, so nothing may run beside it.
pytestmark = [pytest.mark.alone, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]
SHORT = [scenario for scenario in ALL if scenario.short]
CONTROLS = [s for s in SHORT if s.control is not None and s.uncontrolled().plan == ClusterPlan()][:1]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster() -> AsyncIterator[ChaosCluster]:
    async with running_cluster(ClusterPlan()) as running:
        yield running


@pytest.mark.parametrize("scenario", SHORT, ids=lambda scenario: scenario.name.replace(" ", "-"))
async def test_the_claim_holds(cluster: ChaosCluster, scenario: Scenario) -> None:
    outcome = await run_on(cluster, scenario)
    assert [] == [str(violation) for violation in outcome.violations], scenario.claim


@pytest.mark.parametrize("scenario", CONTROLS, ids=lambda scenario: scenario.name.replace(" ", "-"))
async def test_without_its_protection_it_does_not(cluster: ChaosCluster, scenario: Scenario) -> None:
    outcome = await run_on(cluster, scenario.uncontrolled())
    assert scenario.control is not None
    assert scenario.control.breaks & {violation.invariant for violation in outcome.violations}
