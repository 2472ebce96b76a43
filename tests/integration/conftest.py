"""What integration tests share."""

from __future__ import annotations

import os
import shutil

import pytest

PATIENCE = {
    "rate_window_s": 4.0,
    "hold_s": 1.0,
    "look_back_s": 5.0,
    "up_window_s": 5.0,
    "down_window_s": 1.0,
    "cold_start_s": 4.0,
}
"""An autoscaler's, so that a test sees in seconds what production does in minutes."""


def require_program(name: str) -> str:
    """Find a program; without it the test is skipped loudly, and fails where CI installs it."""
    path = shutil.which(name)
    if path is not None:
        return path
    message = f"{name} is not installed"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
