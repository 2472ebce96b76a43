"""One scenario on real engines, on a cluster of its own. `make chaos` runs them all."""

from __future__ import annotations

import pytest

from tests.chaos.run import run_alone
from tests.chaos.scenarios import ALL

pytestmark = [pytest.mark.engine, pytest.mark.timeout(420)]
[RANK_KILLED] = [scenario for scenario in ALL if scenario.name == "real engines: rank killed"]


async def test_a_rank_that_dies_costs_no_token() -> None:
    outcome = await run_alone(RANK_KILLED)
    assert [] == [str(violation) for violation in outcome.violations], RANK_KILLED.claim
