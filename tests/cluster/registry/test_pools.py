"""Pools of the registry: which are in force, and when the settings are the newer word."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from cluster.registry.contract import Entry, Sighting, Watcher
from cluster.registry.pools import (
    KIND,
    LauncherReport,
    PoolEntry,
    PoolReport,
    PoolState,
    digest_of,
    in_force,
    launcher_of,
    outdated,
)
from cluster.settings import PoolSettings

ONE = PoolSettings(engine="sim")
MORE = PoolSettings(engine="sim", replicas=2)


def entry(name: str, pool: PoolSettings | None, base: PoolSettings | None = None) -> Entry:
    content = PoolEntry(settings=pool, removed=pool is None, base=digest_of(base))
    return Entry(KIND, name, 1, 0, content.model_dump_json(exclude_unset=True, exclude_none=True).encode())


def test_entries_stand_over_the_pools_of_the_settings() -> None:
    entries = {"a": entry("a", MORE), "b": entry("b", None), "c": entry("c", ONE)}
    assert {"a": MORE, "c": ONE} == in_force({"a": ONE, "b": ONE}, entries)


def test_an_entry_that_cannot_be_read_changes_nothing() -> None:
    newer = Entry(KIND, "a", 1, 0, json.dumps({"settings": {"colour": "red"}}).encode())
    assert {"a": ONE} == in_force({"a": ONE}, {"a": newer})
    assert [] == outdated({"a": ONE}, {"a": newer})


@pytest.mark.parametrize(
    ("declared", "base", "old"),
    [(ONE, ONE, False), (MORE, ONE, True), (None, ONE, True), (None, None, False), (ONE, None, True)],
    ids=["the same", "changed", "taken out", "never there", "came"],
)
def test_settings_that_have_changed_since_are_the_newer_word(
    declared: PoolSettings | None, base: PoolSettings | None, old: bool
) -> None:
    made = entry("a", None, base)
    assert [made] * old == outdated({"a": declared} if declared is not None else {}, {"a": made})


@pytest.mark.parametrize("content", [{}, {"removed": True, "settings": {}}], ids=["neither", "both"])
def test_an_entry_has_settings_or_is_removed(content: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="either settings, or removed"):
        PoolEntry.model_validate(content)


def test_the_launchers_report_comes_back_as_it_was() -> None:
    report = LauncherReport(ray=False, changes=True, pools={"a": PoolReport(PoolState.FAILED, "no room")})
    router, launcher = Watcher("r", "router"), Watcher("l", "launcher", report=report.pack())
    assert report == launcher_of([Sighting(router, 1, 0), Sighting(launcher, 1, 0)])
    assert launcher_of([Sighting(router, 1, 0)]) is None
