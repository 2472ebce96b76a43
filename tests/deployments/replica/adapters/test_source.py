"""Copies of an adapter's files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cluster.settings.adapters import AdapterSettings
from deployments.engines.adapter_files import make_home
from deployments.replica.adapters.source import fetch, folder_digest


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "poet"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    (folder / "README.md").write_text("does not count")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "adapters")


def settings(source: Path | str, digest: str = "") -> AdapterSettings:
    return AdapterSettings(pool="demo", source=str(source), digest=digest)


@pytest.mark.parametrize("form", ["folder", "zip", "gztar"])
def test_a_folder_and_an_archive_of_it_are_the_same_adapter(adapter: Path, home: Path, form: str) -> None:
    source: Path | str = adapter
    if form != "folder":
        source = shutil.make_archive(str(home.parent / "packed"), form, root_dir=adapter.parent, base_dir="poet")
    digest, copy = fetch(settings(source, folder_digest(adapter)), home)
    assert digest == folder_digest(adapter) == folder_digest(copy)
    assert sorted(file.name for file in copy.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert list(home.iterdir()) == [copy], "what was unpacked is gone"


def test_other_files_have_another_digest(adapter: Path) -> None:
    before = folder_digest(adapter)
    (adapter / "adapter_model.safetensors").write_bytes(b"weightz")
    assert folder_digest(adapter) != before


def test_what_is_no_adapter_is_refused_and_leaves_nothing(adapter: Path, home: Path) -> None:
    with pytest.raises(ValueError, match=rf"the digest of .*poet must be {'0' * 64}, got [0-9a-f]{{64}}"):
        fetch(settings(adapter, "0" * 64), home)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no weights \(.safetensors, .bin, .pt\) in .*poet"):
        fetch(settings(adapter), home)
    with pytest.raises(ValueError, match=r"no adapter_config.json in "):
        fetch(settings(home.parent), home)
    with pytest.raises(FileNotFoundError, match="there is no /nowhere/poet on this replica"):
        fetch(settings("/nowhere/poet"), home)
    assert list(home.iterdir()) == []


def test_an_archive_can_not_write_outside_of_its_folder(tmp_path: Path, home: Path) -> None:
    import tarfile

    (tmp_path / "evil").write_text("x")
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        archive.add(tmp_path / "evil", arcname="../../../evil2")
    with pytest.raises((OSError, ValueError, tarfile.TarError)):
        fetch(settings(tmp_path / "evil.tar"), home)
    assert not (home.parent / "evil2").exists()


def test_copies_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    gone, other = tmp_path / "replica-4194999-x", tmp_path / "other"
    gone.mkdir()
    other.mkdir()
    mine = make_home(tmp_path)
    assert mine.name.startswith(f"replica-{os.getpid()}-")
    assert not gone.exists()
    assert other.exists()
    assert make_home(tmp_path) != mine
    assert mine.exists()
