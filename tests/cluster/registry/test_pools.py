"""Pools of the registry: which are in force, and when the settings are the newer word."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from cluster.bootstrap.pools import settings_with
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
from cluster.settings import PoolSettings, Settings, TenantSettings
from cluster.settings.queue import QuotaSettings
from cluster.settings.registry import RegistrySettings

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
    # What was in force here stays, be it other settings or none.
    assert {"a": MORE} == in_force({"a": ONE}, {"a": newer}, before={"a": MORE})
    assert {} == in_force({"a": ONE}, {"a": newer}, before={})


def test_an_entry_that_cannot_be_read_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    newer = Entry(KIND, "once", 7, 0, b'{"settings": {"colour": "blue"}}')
    for _ in range(3):
        in_force({}, {"once": newer})
    assert ["registry.unreadable"] == [record.message for record in caplog.records]


def test_the_settings_alone_say_what_is_fixed() -> None:
    entries = {"a": entry("a", None), "c": entry("c", ONE)}
    assert {"a": ONE} == in_force({"a": ONE}, entries, RegistrySettings(fixed=("pool",)))
    assert {"a": ONE, "c": ONE} == in_force({"a": ONE}, entries, RegistrySettings(fixed=("pool/a",)))


def test_settings_of_replicas_name_no_pool_that_was_removed() -> None:
    quota = TenantSettings(pools={"b": QuotaSettings(requests_per_minute=1)})
    settings = Settings(pools={"a": ONE, "b": ONE}, default_tenant=quota)
    written = settings_with(settings, {"a": ONE}).model_dump_json()
    assert {"a": ONE} == Settings.model_validate_json(written).pools


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
    report = LauncherReport(ray=False, changes=True, pools={"a": PoolReport(PoolState.FAILED, "no room", 7)})
    router, launcher = Watcher("r", "router"), Watcher("l", "launcher", report=report.pack())
    assert report == launcher_of([Sighting(router, 1, 0), Sighting(launcher, 1, 0)])
    assert launcher_of([Sighting(router, 1, 0)]) is None
