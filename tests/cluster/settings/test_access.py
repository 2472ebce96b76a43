"""Who may call without credentials follows from the address, the keys file and an explicit word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.errors import SettingsError
from cluster.settings import Access, access_of, is_loopback, load_settings
from cluster.settings.load import parse_settings

KEYS = {"keys_file": "/etc/keys.toml"}


def access(host: str, **auth: Any) -> Access:
    return access_of(load_settings(flags={"router": {"host": host}, "auth": auth}, environ={}))


@pytest.mark.parametrize(
    ("host", "auth", "expected"),
    [
        ("127.0.0.1", {}, Access(True, "admin")),
        ("localhost", {}, Access(True, "admin")),
        ("[::1]", {}, Access(True, "admin")),
        ("127.0.0.1", KEYS, Access(False, "user")),
        ("127.0.0.1", {**KEYS, "anonymous": True}, Access(True, "user")),
        ("0.0.0.0", KEYS, Access(False, "user")),  # noqa: S104
        ("0.0.0.0", {"anonymous": True}, Access(True, "user")),  # noqa: S104
        ("0.0.0.0", {"anonymous": True, "anonymous_role": "operator"}, Access(True, "operator")),  # noqa: S104
        ("0.0.0.0", {**KEYS, "anonymous": True}, Access(True, "user")),  # noqa: S104
    ],
)
def test_access(host: str, auth: dict[str, Any], expected: Access) -> None:
    assert expected == access(host, **auth)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "router.example.org", "::"])  # noqa: S104
def test_an_address_that_others_reach_needs_keys_or_an_explicit_word(host: str) -> None:
    with pytest.raises(SettingsError) as caught:
        access(host)
    named = repr(host.strip("[]"))
    assert all(word in str(caught.value) for word in ("auth.keys_file", "auth.anonymous", named, "keys new"))


def test_a_cluster_that_nobody_could_call_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"auth\.anonymous is false"):
        access("127.0.0.1", anonymous=False)


@pytest.mark.parametrize(
    ("host", "expected"), [("127.9.9.9", True), ("::1", True), ("", False), ("localhost.x", False)]
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert expected is is_loopback(host)


def test_file_names_survive_the_way_to_processes_that_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(flags={"auth": {"keys_file": "keys.toml"}}, environ={})
    monkeypatch.chdir("/")

    assert tmp_path / "keys.toml" == parse_settings(settings.model_dump_json()).auth.keys_file
