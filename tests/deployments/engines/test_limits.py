from __future__ import annotations

import pytest

from deployments.engines.limits import clamp_sequences, clamp_tokens


@pytest.mark.parametrize(("wanted", "in_force"), [(-1, 1), (0, 1), (5, 5), (99, 64)])
def test_batch_limit_stays_between_one_and_the_start_value(wanted: int, in_force: int) -> None:
    assert clamp_sequences(wanted, 64) == in_force


@pytest.mark.parametrize(("wanted", "in_force"), [(1, 40), (39, 40), (300, 300), (9999, 512)])
def test_token_budget_always_has_room_for_every_sequence(wanted: int, in_force: int) -> None:
    assert clamp_tokens(wanted, sequences=10, tokens_per_sequence=4, largest=512) == in_force
