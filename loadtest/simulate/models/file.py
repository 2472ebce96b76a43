"""The file that names models, their loads and the GPUs that they share."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cluster.errors import SettingsError, plain_reason
from loadtest.simulate.given_flags import given

_WHOLE_RUN = ("json", "html", "png", "compare", "tune", "models")
"""Flags of all models together."""
MOST_GPUS = 100_000


@dataclass(frozen=True, slots=True)
class NamedModel:
    """One model of the file."""

    name: str
    gpus: int
    """Of one replica."""
    options: argparse.Namespace
    """Flags of `penstock simulate`."""


@dataclass(frozen=True, slots=True)
class ModelsFile:
    """Content of the file."""

    gpus: int
    models: tuple[NamedModel, ...]


class _RefusedError(Exception):
    """Flags that the parser does not take."""


class _Parser(argparse.ArgumentParser):
    """Parser that leaves the end of the process to others."""

    def error(self, message: str) -> NoReturn:
        raise _RefusedError(message)


def read_models(path: Path, add_flags: Callable[[argparse.ArgumentParser], None]) -> ModelsFile:
    """Read a TOML file with `gpus`, a table `models.NAME` of flags per model, and `all` with flags of every model.

    Args:
        path: the file. Traces are relative to its folder.
        add_flags: adds the flags of one model.

    Raises:
        SettingsError: the file cannot be read, or a value is out of range.
    """
    tree = _tree(path)
    for name in tree.keys() - {"gpus", "models", "all"}:
        raise SettingsError(f"models: {path} must have gpus, all and models only, got {name}")
    common, models = _table(tree, "all"), _table(tree, "models")
    if not models:
        raise SettingsError(f"models: {path} must have at least one table [models.NAME]")
    parser = _Parser("penstock simulate", allow_abbrev=False, add_help=False)
    add_flags(parser)
    found = []
    for name in models:
        flags = {**common, **_table(models, name, "models.")}
        gpus = _whole(flags.pop("gpus", 1), f"models.{name}.gpus")
        found.append(NamedModel(name, gpus, _options(parser, name, flags, path.parent)))
    return ModelsFile(_whole(tree.get("gpus"), "gpus"), tuple(found))


def _tree(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"models: {path} cannot be read: {plain_reason(error)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"models: {path} is not TOML: {error}") from error


def _table(tree: Mapping[str, Any], name: str, under: str = "") -> dict[str, Any]:
    found = tree.get(name, {})
    if not isinstance(found, dict):
        raise SettingsError(f"{under}{name} must be a table, got {found!r}")
    return found


def _whole(value: object, name: str) -> int:
    if type(value) is not int or not 1 <= value <= MOST_GPUS:
        got = "none" if value is None else repr(value)
        raise SettingsError(f"{name} must be a whole number from 1 to {MOST_GPUS}, got {got}")
    return value


def _options(parser: _Parser, name: str, flags: Mapping[str, Any], folder: Path) -> argparse.Namespace:
    words = []
    for flag, value in flags.items():
        if flag in _WHOLE_RUN:
            raise SettingsError(f"models.{name}.{flag} is not of one model, got {value!r}")
        if value is True:
            words.append(f"--{flag}")
        elif isinstance(value, str | int | float) and value is not False:
            words.append(f"--{flag}={_trace(value, folder) if flag == 'trace' else value}")
        elif value is not False:
            raise SettingsError(f"models.{name}.{flag} must be a text, a number, true or false, got {value!r}")
    try:
        options = parser.parse_args(words)
    except _RefusedError as error:
        raise SettingsError(f"models.{name}: {error}") from error
    if not options.trace:
        raise SettingsError(f"models.{name}.trace must be given")
    return options


def _trace(name: object, folder: Path) -> str:
    beside = folder / str(name)
    return str(beside) if beside.exists() else str(name)


def only_with(options: argparse.Namespace, allowed: frozenset[str]) -> None:
    """Refuse flags beside the file that would have no effect.

    Raises:
        SettingsError: there is one.
    """
    for name in sorted(given(options) - allowed):
        raise SettingsError(
            f"{name.replace('_', '-')} does not go together with models: the file has the flags of each model, "
            f"got {getattr(options, name)}"
        )
