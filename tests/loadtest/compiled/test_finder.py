"""Compiled modules are used where they are asked for and are those of the sources, and never else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.errors import SettingsError
from loadtest.compiled.finder import RECORD, VARIABLE, CompiledFinder
from loadtest.compiled.modules import CELLS, ROOT, SETS, SIMULATOR, digest, source_of

MODULE = "loadtest.simulate.pool.loop"


def recorded(folder: Path, **fields: object) -> Path:
    record = {"set": "simulator", "digest": digest(SIMULATOR), "extensions": {MODULE: "loop.so"}, **fields}
    (folder / RECORD).write_text(json.dumps(record))
    return folder


def started(variable: str) -> str:
    """Import the simulator in a process of its own. Return what it prints."""
    script = f"""
import os; os.environ["{VARIABLE}"] = {variable!r}
import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "proto")!r}]
try:
    import {MODULE}
except Exception as error:
    print(type(error).__name__, error)
else:
    print({MODULE}.__file__)
"""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_every_module_has_a_source() -> None:
    assert [] == [module for modules in SETS.values() for module in modules if not source_of(module).is_file()]


@pytest.mark.slow
def test_nothing_changes_where_nothing_is_asked_for() -> None:
    assert started("") == f"{source_of(MODULE)}\n"


@pytest.mark.slow
def test_modules_of_other_sources_are_an_error(tmp_path: Path) -> None:
    found = started(str(recorded(tmp_path, digest="of other sources")))
    assert found.startswith(f"SettingsError {VARIABLE} must name")
    assert f"got {tmp_path}, which has those of others: compile again" in found


BAD = [None, "", "[]", '{"set": "cells", "digest": "x"}', '{"set": "cells", "digest": "x", "extensions": 3}']


@pytest.mark.parametrize("text", [*BAD, '{"set": "other", "digest": "x", "extensions": {}}'])
def test_a_folder_without_them_is_an_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / RECORD).write_text(text)
    with pytest.raises(SettingsError, match=rf"{VARIABLE} must name .* got {tmp_path}: {RECORD} can't be read there"):
        CompiledFinder(tmp_path).find_spec(MODULE)


def test_modules_that_are_in_use_already_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else some would be compiled and others not, and they do not fit together."""
    for module in SIMULATOR:
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, SIMULATOR[1], sys)
    with pytest.raises(SettingsError, match=f"comes too late: {SIMULATOR[1]} is imported from its source already"):
        CompiledFinder(recorded(tmp_path)).find_spec(MODULE)


def test_the_extension_of_a_module_is_found_and_other_modules_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in SIMULATOR:
        monkeypatch.delitem(sys.modules, module, raising=False)
    found = CompiledFinder(recorded(tmp_path))
    assert found.find_spec("loadtest.simulate.setup") is None
    spec = found.find_spec(MODULE)
    assert spec is not None
    assert spec.origin == str(tmp_path / "loop.so")


def test_only_the_modules_of_a_folders_set_must_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command uses production's choice of cells before it simulates anything."""
    for module in (*SIMULATOR, *CELLS):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, CELLS[0], sys)
    found = CompiledFinder(recorded(tmp_path))
    assert found.find_spec(CELLS[1]) is None
    assert found.find_spec(MODULE) is not None
    other = CompiledFinder(recorded(tmp_path, set="cells", digest=digest(CELLS)))
    with pytest.raises(SettingsError, match=f"comes too late: {CELLS[0]} is imported"):
        other.find_spec(MODULE)


def test_any_change_of_a_source_changes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, before_cells = digest(SIMULATOR), digest(CELLS)
    changed = tmp_path / "changed.py"
    changed.write_bytes(source_of(MODULE).read_bytes() + b"\n")
    monkeypatch.setattr(
        "loadtest.compiled.modules.source_of", lambda module: changed if module == MODULE else source_of(module)
    )
    assert before != digest(SIMULATOR)
    assert before_cells == digest(CELLS)
