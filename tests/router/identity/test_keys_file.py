"""The keys file: what it may say, what it says about mistakes, and how keys get into it."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cluster.errors import SettingsError
from router.identity.key import hash_key, key_id, mint_key
from router.identity.keys_file import MAX_BYTES, KeysFile, parse_keys_file, read_keys_file
from router.identity.new_key import KeyPlan, add_key

HASH = "0" * 63 + "1"
KEY = f'[[keys]]\nid = "00000000000000ab"\nsha256 = "{HASH}"\n'


def test_keys_are_random_and_have_a_public_part() -> None:
    one, other = mint_key(), mint_key()

    assert re.fullmatch(r"psk_[0-9a-f]{16}_[0-9a-f]{64}", one)
    assert (one[4:20], True) == (key_id(one), one != other)
    assert (64, True) == (len(hash_key(one)), hash_key(one) != hash_key(other))


@pytest.mark.parametrize(
    "text", ["", "psk_", "psk_x_y", "psk_" + "A" * 16 + "_" + "0" * 64, "psk_" + "a" * 16 + "_" + "0" * 65, "ä"]
)
def test_what_is_no_key_has_no_public_part(text: str) -> None:
    assert key_id(text) is None


def test_a_whole_file_is_read() -> None:
    file = parse_keys_file(
        f"""{KEY}tenant = "acme"
role = "operator"
models = ["small"]
classes = ["standard", "batch"]
not_before = 2026-01-01T00:00:00Z
expires = 2026-07-01T02:00:00+02:00

[[certificates]]
uri = "spiffe://example.org/acme"
tenant = "acme"

[[certificates]]
common_name = "batch.example.org"
tenant = "acme"
"""
    )
    [key] = file.keys

    assert ("acme", "operator", ("small",), ("standard", "batch")) == (key.tenant, key.role, key.models, key.classes)
    assert (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 7, 1, tzinfo=UTC)) == (key.not_before, key.expires)
    assert ["uri spiffe://example.org/acme", "common_name batch.example.org"] == [c.name for c in file.certificates]


def test_an_empty_file_lets_nobody_in() -> None:
    assert KeysFile() == parse_keys_file("")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[keys]", "not valid TOML"),
        (KEY, "keys.0.tenant: is required"),
        (KEY + 'tenant = "a b"', "keys.0.tenant: must match"),
        (KEY + 'tenant = "anonymous"', "kept for callers without credentials"),
        (KEY + 'tenant = "a"\nrole = "root"', "'user', 'tenant_operator', 'operator' or 'admin', got 'root'"),
        (KEY + 'tenant = "a"\nclasses = ["fast"]', "keys.0.classes.0"),
        (KEY + 'tenant = "a"\ntenannt = "b"', "keys.0.tenannt: unknown setting"),
        (KEY + 'tenant = "a"\nexpires = 2026-07-01T00:00:00', "timezone"),
        (KEY + 'tenant = "a"\nnot_before = 2026-07-01T00:00:00Z\nexpires = 2026-07-01T00:00:00Z', "after not_before"),
        ((KEY + 'tenant = "a"\n') * 2, "given more than once: key 00000000000000ab"),
        ('[[certificates]]\ntenant = "a"', "exactly one of common_name and uri"),
        ('[[certificates]]\ntenant = "a"\nuri = "x"\ncommon_name = "y"', "exactly one of common_name and uri"),
    ],
)
def test_mistakes_are_named(text: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_keys_file(text)
    assert expected in str(caught.value)


@pytest.mark.parametrize("field", ["id", "sha256", "key", "role"])
def test_a_key_in_the_wrong_place_is_not_repeated_in_the_error(field: str) -> None:
    key = mint_key()
    with pytest.raises(SettingsError) as caught:
        parse_keys_file(f'[[keys]]\n{field} = "{key}"\ntenant = "a"\n{key} = 1\n')
    shown = "".join(traceback.format_exception(caught.value))
    assert (False, False) == (key in shown, key[21:41] in shown)


def test_a_file_that_is_missing_or_too_large_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"auth\.keys_file: .*missing\.toml cannot be read"):
        read_keys_file(tmp_path / "missing.toml")
    large = tmp_path / "large.toml"
    with large.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(SettingsError, match=rf"at most {MAX_BYTES} bytes, got {MAX_BYTES + 1}"):
        read_keys_file(large)


# --- adding -----------------------------------------------------------------------------------------------------------


def test_a_new_key_is_in_the_file_as_a_hash_only_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    first = add_key(path, KeyPlan("acme"))
    path.write_text("# ours\n" + path.read_text().rstrip("\n"))
    expires = datetime.now(UTC) + timedelta(days=1)
    second = add_key(path, KeyPlan("b.c-d", "admin", ("m",), ("batch",), expires=expires))
    text = path.read_text()
    keys = read_keys_file(path).keys

    assert text.startswith("# ours\n")
    assert [key_id(first), key_id(second)] == [entry.id for entry in keys]
    assert [hash_key(first), hash_key(second)] == [entry.sha256 for entry in keys]
    assert ("b.c-d", "admin", ("m",), ("batch",)) == (keys[1].tenant, keys[1].role, keys[1].models, keys[1].classes)
    assert keys[1].expires == expires.replace(microsecond=0)
    assert first[21:] not in text
    assert ([path], 0o600) == (list(tmp_path.iterdir()), path.stat().st_mode & 0o777)


@pytest.mark.parametrize(
    "plan", [KeyPlan("a b"), KeyPlan("a", "root"), KeyPlan("a", classes=("fast",)), KeyPlan('a"\n')]
)
def test_a_plan_that_is_not_good_changes_nothing(tmp_path: Path, plan: KeyPlan) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, KeyPlan("acme"))
    before = path.read_bytes()
    with pytest.raises(SettingsError, match=r"new key: keys\.1"):
        add_key(path, plan)

    assert before == path.read_bytes()


def test_a_broken_file_is_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("[[keys]")
    with pytest.raises(SettingsError, match="not valid TOML"):
        add_key(path, KeyPlan("acme"))

    assert "[[keys]" == path.read_text()


async def test_keys_that_are_made_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    made = await asyncio.gather(*(asyncio.to_thread(add_key, path, KeyPlan("acme")) for _ in range(8)))

    assert {key_id(key) for key in made} == {entry.id for entry in read_keys_file(path).keys}


def test_the_file_stays_readable_to_whom_it_was(tmp_path: Path) -> None:
    """Routers often run as another user than who adds keys, with rights that a umask would take away."""
    path = tmp_path / "keys.toml"
    add_key(path, KeyPlan("acme"))
    path.chmod(0o660)
    if os.geteuid() == 0:
        os.chown(path, 12_345, 54_321)
    before, umask = path.stat(), os.umask(0o077)
    try:
        add_key(path, KeyPlan("acme"))
    finally:
        os.umask(umask)

    after = path.stat()
    assert (before.st_mode, before.st_uid, before.st_gid) == (after.st_mode, after.st_uid, after.st_gid)


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "keys.toml"
    link.symlink_to("real/keys.toml")
    add_key(link, KeyPlan("acme"))

    assert (True, 1) == (link.is_symlink(), len(read_keys_file(tmp_path / "real" / "keys.toml").keys))


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "keys.toml"
    os.mkfifo(pipe)
    # As `/dev/null` reads; a pipe without a writer would wait.
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_options: "")
    with pytest.raises(SettingsError, match=f"{re.escape(str(pipe))} must be a regular file"):
        add_key(pipe, KeyPlan("acme"))
    assert pipe.is_fifo()


def test_a_read_only_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There even the removal of a file that does not exist fails."""
    path = tmp_path / "keys.toml"

    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("router.identity.new_key.os.fdopen", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(SettingsError, match=rf"^auth\.keys_file: {re.escape(str(path))} cannot be written: Read-only"):
        add_key(path, KeyPlan("acme"))
