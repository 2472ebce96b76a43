"""What hosts a replica in Ray Serve."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.errors import SettingsError
from cluster.settings import Settings

pytestmark = pytest.mark.slow


async def test_the_autoscaler_hears_of_a_start_that_failed_before_the_engine_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Takes a second with Ray Serve, so not when tests are collected.
    from deployments import app

    told: list[str] = []

    async def note(_settings: Settings, pool: str, error: Exception) -> None:
        told.append(f"{pool}: {error}")

    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="a"), rank=SimpleNamespace(rank=0))
    monkeypatch.setattr(app.serve, "get_replica_context", lambda: context)
    monkeypatch.setattr(app, "configure_logging", lambda *_: None)
    monkeypatch.setattr(app, "note_failed_start", note)
    missing = tmp_path / "secret"
    tree = {
        "cluster": {"secret_file": str(missing)},
        "redis": {"url": "redis://127.0.0.1:1"},
        "pools": {"demo": {"engine": "sim"}},
    }

    with pytest.raises(SettingsError):
        await app.ReplicaHost.__init__(SimpleNamespace(), "demo", "", tree)  # type: ignore[arg-type, misc]

    assert [f"demo: cluster secret {missing} cannot be read: No such file or directory"] == told
