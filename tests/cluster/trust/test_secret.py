"""The cluster secret's file: made once, whole, and named when it can't be used."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from cluster.errors import SettingsError
from cluster.trust import secret as secret_module
from cluster.trust.link_proof import LinkClaim
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


# --- several secrets --------------------------------------------------------------------------------------------------

OLD, NEW = "o" * 64, "n" * 64


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_module, "LOOK_S", 0.0)


def test_the_first_secret_signs_and_all_of_them_verify() -> None:
    old, new, both = ClusterSecret(OLD.encode()), ClusterSecret(NEW.encode()), ClusterSecret(NEW.encode(), OLD.encode())
    assert (
        b"x"
        == both.open("p", old.seal("p", b"x"))
        == both.open("p", new.seal("p", b"x"))
        == new.open("p", both.seal("p", b"x"))
    )
    assert old.open("p", both.seal("p", b"x")) is None
    assert both.open("q", old.seal("p", b"x")) is None
    assert ClusterSecret(b"another secret...").open("p", both.seal("p", b"x")) is None


@pytest.mark.usefixtures("at_once")
def test_the_file_is_followed_and_a_mistake_in_it_changes_nothing(tmp_path: Path) -> None:
    path, told = tmp_path / "secret", []
    path.write_text(OLD)
    secret = ClusterSecret.from_file(path)
    secret.watch(lambda name, good: told.append((name, good)))
    fixed, sealed = secret.signer(), secret.seal("p", b"x")
    path.write_text(f"{NEW}\n  {OLD}  \n\n")
    assert ClusterSecret(NEW.encode()).sign("p", b"x") == secret.sign("p", b"x") != fixed.sign("p", b"x")
    assert b"x" == secret.open("p", sealed)
    path.write_text(f"{NEW}\nshort")
    assert b"x" == secret.open("p", sealed)
    path.write_text(NEW)
    assert secret.open("p", sealed) is None
    assert [("cluster.secret_file", good) for good in (True, False, True)] == told


@pytest.mark.parametrize("content", [b"\x00" * 15 + b"\n" + b"\xff" * 15, "é".encode() * 8 + b"\n" + b"x" * 16])
def test_a_file_that_is_no_text_is_one_secret(tmp_path: Path, content: bytes) -> None:
    """Random bytes may have line ends among them."""
    (tmp_path / "secret").write_bytes(content)
    assert (content,) == ClusterSecret.from_file(tmp_path / "secret").current()


def test_a_line_that_is_too_short_and_too_many_are_named(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{OLD}\nshort\n")
    with pytest.raises(SettingsError, match=r"secret, line 2, must have at least 16 bytes, got 5"):
        ClusterSecret.from_file(path)
    path.write_text(f"{OLD}\n" * 9)
    with pytest.raises(SettingsError, match=r"must have at most 8 lines, got 9"):
        ClusterSecret.from_file(path)


def test_a_link_is_proven_while_each_end_signs_with_another_secret() -> None:
    router = ClusterSecret(NEW.encode(), OLD.encode())
    replica = ClusterSecret(OLD.encode(), NEW.encode())
    claim, answer = LinkClaim.make(router, "r", "x")
    assert answer == claim.answer(replica, "x")
    assert claim.answer(ClusterSecret(OLD.encode()), "x") is None
