"""The cluster secret's file: made once, whole, and named when it can't be used."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from cluster.errors import SettingsError
from cluster.trust.secret import ClusterSecret


def test_a_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "state" / "secret"
    first = ClusterSecret.create_file(path)

    assert (0o600, 64) == (path.stat().st_mode & 0o777, len(path.read_bytes()))
    assert first.sign("p", b"x") == ClusterSecret.create_file(path).sign("p", b"x")


def test_a_full_disk_leaves_no_half_of_one(tmp_path: Path) -> None:
    """Every later start would take it for the secret, and refuse it."""
    path = tmp_path / "secret"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        with pytest.raises(SettingsError, match=rf"cluster secret {path} cannot be written: File too large"):
            ClusterSecret.create_file(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    ClusterSecret.create_file(path)


def test_a_file_that_can_not_be_made_or_is_too_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("short\n")
    with pytest.raises(SettingsError, match=rf"cluster secret {path} must have at least 16 bytes, got 5"):
        ClusterSecret.create_file(path)
    with pytest.raises(SettingsError, match=rf"cluster secret {path}/secret cannot be written: File exists"):
        ClusterSecret.create_file(path / "secret")
