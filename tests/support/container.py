"""Commands in a pid namespace of their own, in which they are process 1, as in a container."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import pytest

_UNSHARE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")


def contained(words: Sequence[str]) -> list[str]:
    """Return the command that runs another one as process 1. Without the right to do so the test is skipped."""
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this machine allows no pid namespaces: {tried.stderr.strip()}")
    return [*_UNSHARE, *words]
