"""`explain` names the cause of slow requests whose cause was planted."""

from __future__ import annotations

import pytest

from tests.explain.__main__ import LEAST
from tests.explain.check import run_plants
from tests.explain.plants import PLANTS


@pytest.mark.alone
async def test_nine_of_ten_planted_causes_are_named() -> None:
    found = await run_plants()

    assert len(PLANTS) == len(found) >= 20
    wrong = [each for each in found if not each.right]
    assert len(wrong) <= (1 - LEAST) * len(found), wrong
