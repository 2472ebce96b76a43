"""Import of the compiled modules in place of their sources."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from cluster.errors import SettingsError
from loadtest.compiled.modules import SETS, digest

VARIABLE = "PENSTOCK_COMPILED_SIMULATOR"
"""Environment variable with the folder of the compiled modules."""
RECORD = "compiled.json"
"""File in that folder: the name of the set, the digest of its sources, and the extension of each module."""


class CompiledFinder(MetaPathFinder):
    """Finder of the compiled modules in a folder. It reads the folder when the first of them is imported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._extensions: Mapping[str, str] | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module.

        Raises:
            SettingsError: the folder has no compiled modules, or those of other sources.
        """
        if self._extensions is None:
            if not any(name in modules for modules in SETS.values()):
                return None
            self._extensions = read_record(self._folder)
        file = self._extensions.get(name)
        return None if file is None else spec_from_file_location(name, self._folder / file)


def read_record(folder: Path) -> Mapping[str, str]:
    """Return the extension of each compiled module in a folder.

    Raises:
        SettingsError: the folder has no compiled modules, or those of other sources, or sources are in use already.
    """
    where = f"{VARIABLE} must name a folder that `make compile-simulator` filled"
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        modules, compiled, extensions = SETS[record["set"]], record["digest"], dict(record["extensions"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{where}, got {folder}: {RECORD} can't be read there") from error
    if compiled != digest(modules):
        raise SettingsError(
            f"{where} from the sources and the Python in use, got {folder}, which has those of others: compile again"
        )
    early = [name for name in modules if name in sys.modules]
    if early:
        raise SettingsError(f"{VARIABLE} comes too late: {', '.join(early)} is imported from its source already")
    return extensions


def use_compiled() -> None:
    """Import compiled modules from now on, from the folder that the environment names."""
    sys.meta_path.insert(0, CompiledFinder(Path(os.environ[VARIABLE]).absolute()))
