"""When a Ray cluster began."""

from __future__ import annotations

import pytest

from cluster.ray_serve.session import session_start


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("session_2026-11-27_10-00-00_123456_1", 1_795_773_600.0),
        ("session_2026-11-27_10-00-01_000001_77", 1_795_773_601.0),
        ("session_latest", 0.0),
        ("session_2026-13-99_10-00-00_1_1", 0.0),
        ("", 0.0),
    ],
)
def test_the_name_of_a_session_tells_its_start(name: str, seconds: float) -> None:
    assert seconds == session_start(name)
