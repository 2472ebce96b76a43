"""The dial between cost and attainment."""

from __future__ import annotations

from typing import Literal

Headroom = Literal["less", "balanced", "more"]
"""Steps of the dial, from the cheapest on."""
