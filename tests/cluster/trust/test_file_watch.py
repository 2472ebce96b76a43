"""Files that change under a running process."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from cluster.errors import SettingsError
from cluster.trust.file_watch import Watched


class Reader:
    """Reads one file; the word "bad" is not good content."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reads = 0
        self.reloads: list[tuple[str, bool]] = []

    def __call__(self) -> str:
        self.reads += 1
        try:
            text = self.path.read_text()
        except OSError as error:
            raise SettingsError(str(error)) from error
        if text == "bad":
            raise SettingsError("it says bad")
        return text

    def watch(self) -> Watched[str]:
        return Watched("thing", [self.path], self, lambda name, good: self.reloads.append((name, good)))


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    (tmp_path / "file").write_text("one")
    return Reader(tmp_path / "file")


def replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".new")
    partial.write_text(text)
    partial.replace(path)


def test_new_content_is_taken_over_and_unchanged_content_is_not_read_again(reader: Reader) -> None:
    watched = reader.watch()

    assert (False, 1, "one") == (watched.refresh(), reader.reads, watched.content)
    replace(reader.path, "two")
    assert (True, "two", 1) == (watched.refresh(), watched.content, watched.version)
    assert (False, 2) == (watched.refresh(), reader.reads)
    assert [("thing", True)] == reader.reloads


@pytest.mark.parametrize("broken", ["bad", None])
def test_bad_content_leaves_the_last_good_one_and_is_reported_once(
    reader: Reader, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    watched = reader.watch()
    if broken is None:
        reader.path.unlink()
    else:
        replace(reader.path, broken)
    with caplog.at_level(logging.ERROR):
        assert [False, False] == [watched.refresh(), watched.refresh()]

    assert ("one", 0, [("thing", False)]) == (watched.content, watched.version, reader.reloads)
    assert ["file.bad"] == [record.message for record in caplog.records]
    replace(reader.path, "three")
    assert (True, "three") == (watched.refresh(), watched.content)


def test_content_that_changes_while_it_is_read_is_read_again(reader: Reader) -> None:
    watched = reader.watch()
    replace(reader.path, "two")
    read, writes = watched._read, iter(["three"])

    def interrupted() -> str:
        text = read()
        for later in writes:
            replace(reader.path, later)
        return text

    watched._read = interrupted
    assert (False, "one") == (watched.refresh(), watched.content)
    assert (True, "three") == (watched.refresh(), watched.content)


def test_a_mounted_secret_changes_when_its_link_moves(tmp_path: Path) -> None:
    for version, text in (("v1", "one"), ("v2", "two")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "file").write_text(text)
        os.utime(tmp_path / version / "file", (1, 1))
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "file").symlink_to("..data/file")
    watched = Reader(tmp_path / "file").watch()
    (tmp_path / "moved").symlink_to("v2")
    (tmp_path / "moved").replace(tmp_path / "..data")

    assert (True, "two") == (watched.refresh(), watched.content)


def test_the_first_content_must_be_good(reader: Reader) -> None:
    reader.path.write_text("bad")
    with pytest.raises(SettingsError, match="it says bad"):
        reader.watch()
