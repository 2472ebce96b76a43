"""Runs the tests that failed in the last run once more, one after another, and says which of them pass then."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
MOST = 12
"""Tests; when more failed, it was not chance."""


def failed() -> list[str]:
    """Return the names of the tests that the last runs left failed."""
    return sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []


def main() -> int:
    """Return what pytest does: 0 when all pass now."""
    first = failed()
    if not 0 < len(first) <= MOST:
        print(f"{len(first)} tests failed: not run again (1 to {MOST} would be)")
        return 1
    print(f"{len(first)} tests failed and run again, alone:", *first, sep="\n  ")
    code = int(pytest.main(["--last-failed", "--last-failed-no-failures=none"]))
    second = failed()
    passed = [name for name in first if name not in second]
    print(f"FLAKY: {len(passed)} of {len(first)} failed at first and passed alone:", *passed, sep="\n  ")
    return code


if __name__ == "__main__":
    sys.exit(main())
