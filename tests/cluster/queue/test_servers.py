"""The server that the tests run on is the one that is named, or one that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.queue.servers import NAMED, find_binary, find_program, read_program


def program(folder: Path, says: str) -> str:
    """Write a program that says what it is."""
    path = folder / "server"
    path.write_text(f"#!/bin/sh\necho '{says}'\n", encoding="utf-8")
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize(
    ("says", "shown"),
    [
        ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "Redis 7.0.15"),
        ("Redis server v=8.2.3 sha=b5d43ceb:0 malloc=jemalloc-5.3.0 bits=64", "Redis 8.2.3"),
        ("Valkey server v=9.1.2 sha=00000000:1 malloc=libc bits=64", "Valkey 9.1.2"),
    ],
)
def test_a_named_server_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, shown: str) -> None:
    path = program(tmp_path, says)
    monkeypatch.setenv(NAMED, path)
    assert f"{shown} ({path})" == str(find_program())
    assert path == find_binary("7.0")


@pytest.mark.parametrize("says", ["Redis server v=6.2.14 sha=00000000:0", "hello"])
def test_a_named_server_that_can_not_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    monkeypatch.setenv(NAMED, program(tmp_path, says))
    with pytest.raises(pytest.UsageError, match=f"{NAMED} is .*: it must be a Redis or Valkey, 7.0 or newer"):
        find_program()


def test_what_does_not_run_is_no_program(tmp_path: Path) -> None:
    assert read_program(str(tmp_path / "none")) is None
