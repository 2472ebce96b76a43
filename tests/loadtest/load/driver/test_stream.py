"""What a client sees of one stream."""

from __future__ import annotations

import pytest

from loadtest.load.driver.stream import StreamObservation


@pytest.mark.parametrize(("gaps", "p95"), [(0, 0.0), (1, 1.0), (19, 19.0), (20, 19.0), (21, 20.0), (100, 95.0)])
def test_the_p95_of_gaps_is_the_smallest_that_covers_95_percent(gaps: int, p95: float) -> None:
    seen = StreamObservation(due_at=0.0)
    seen.gaps.extend(float(number) for number in range(gaps, 0, -1))
    assert p95 == seen.itl_p95_s
