"""Files of entries: TOML with the tables of the settings, such as `[tenants.acme]`."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from cluster.errors import SettingsError, plain_reason

if TYPE_CHECKING:
    from cluster.settings import PoolSettings
    from penstock.client import RegistryDifference, RegistryEdit, RegistryEntry

TABLES: Mapping[str, str] = {
    "tenants": "tenant",
    "keys": "key",
    "adapters": "adapter",
    "aliases": "alias",
    "pools": "pool",
}
"""Name of a table to the kind of its entries."""
_TABLE_OF = {kind: table for table, kind in TABLES.items()}


def kind_of(word: str) -> str:
    """Return the kind that a word names, in the singular or the plural; empty for an empty word.

    Raises:
        SettingsError: it names none.
    """
    kind = TABLES.get(word, word)
    if kind and kind not in _TABLE_OF:
        raise SettingsError(f"KIND: must be one of {', '.join(TABLES)}, got {word!r}")
    return kind


def table_of(kind: str) -> str:
    """Return the table that has the entries of a kind."""
    return _TABLE_OF.get(kind, kind)


def place_of(field: str, edits: Sequence[RegistryEdit]) -> str:
    """Return where a file has what a field of the call comes from, such as tenants.acme.weight."""
    found = re.fullmatch(r"edits\[(\d+)\]\.(?:name|value(?:\.(.+))?)", field)
    if found is None or int(found[1]) >= len(edits):
        return field
    edit = edits[int(found[1])]
    return ".".join(part for part in (table_of(edit.kind), edit.name, found[2]) if part)


@dataclass(frozen=True, slots=True)
class Tables:
    """Content of a file."""

    entries: Mapping[tuple[str, str], dict[str, Any]]
    """Entries by kind and name, but for pools."""
    pools: Mapping[str, PoolSettings] | None
    """Pools by name; None where the file names none."""
    others: tuple[str, ...] = ()
    """Other tables of a settings file, in order."""


def read_file(path: Path) -> Tables:
    """Return the content of a file of entries, or of a file of settings, which has pools or tables of its own.

    Raises:
        SettingsError: the file can't be read, is not TOML, or is neither.
    """
    tables = _read(path)
    if "pools" not in tables and set(tables) <= set(TABLES):
        return Tables(_entries(path, tables), None)
    from pydantic import ValidationError

    from cluster.settings import Settings
    from cluster.settings.load import SECRETS, describe_errors

    if "pools" not in tables and not set(tables) <= {*TABLES, *Settings.model_fields}:
        return Tables(_entries(path, tables), None)
    only_here = {"keys", "adapters"}
    try:
        settings = Settings.model_validate({name: one for name, one in tables.items() if name not in only_here})
    except ValidationError as error:
        raise SettingsError(f"{path}: {describe_errors(error, SECRETS, Settings)}") from error
    own = {name: one for name, one in tables.items() if name in TABLES and name != "pools"}
    others = tuple(name for name in tables if name not in TABLES)
    # Without pools the settings have those by default, which nobody wrote.
    return Tables(_entries(path, own), settings.pools if "pools" in tables else None, others)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {plain_reason(error)}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def _entries(path: Path, tables: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for table, content in tables.items():
        if table not in TABLES or not isinstance(content, dict):
            raise SettingsError(f"{path}: {table}: must be one of the tables {', '.join(TABLES)}")
        for name, value in content.items():
            if not isinstance(value, dict):
                raise SettingsError(f"{path}: {table}.{name}: must be a table, got {value!r}")
            entries[TABLES[table], name] = _plain(value)
    return entries


def _plain(value: Any) -> Any:
    """Return a value in which times are text, as messages have them."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def edits_of(
    entries: Mapping[tuple[str, str], dict[str, Any]], present: Iterable[RegistryEntry], *, prune: bool
) -> list[RegistryEdit]:
    """Return the edits that bring a registry to a file.

    Args:
        entries: content of the file.
        present: entries of the registry. The edits expect that nobody changes these meanwhile.
        prune: delete those entries of the file's kinds that it does not have.
    """
    from penstock.client import RegistryEdit

    here = {(one.kind, one.name): one for one in present}
    edits = []
    for (kind, name), value in entries.items():
        found = here.get((kind, name))
        if found is None or found.value != value:
            edits.append(RegistryEdit(kind, name, value, found.version if found is not None else 0))
    if prune:
        kinds = {kind for kind, _ in entries}
        gone = [one for key, one in here.items() if one.kind in kinds and key not in entries and one.version]
        edits += [RegistryEdit(one.kind, one.name, None, one.version) for one in gone]
    return edits


def split_by_coming(edits: Iterable[RegistryEdit], coming: Set[str]) -> tuple[list[RegistryEdit], list[RegistryEdit]]:
    """Return the edits that a cluster can check now, and those that name a pool which is still to come."""
    now: list[RegistryEdit] = []
    later: list[RegistryEdit] = []
    for edit in edits:
        (now if coming.isdisjoint(_texts(edit.value)) else later).append(edit)
    return now, later


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (name for name in value if isinstance(name, str))
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def difference_of(edit: RegistryEdit, present: Iterable[RegistryEntry]) -> RegistryDifference:
    """Return the effect of an edit as the file has it: the cluster, which would complete it, can't check it yet."""
    from penstock.client import RegistryDifference

    before = next((one.value for one in present if (one.kind, one.name) == (edit.kind, edit.name)), None)
    return RegistryDifference(edit.kind, edit.name, before, edit.value)


def to_toml(entries: Iterable[RegistryEntry]) -> str:
    """Return entries as a file that `penstock apply` takes."""
    import tomli_w

    tables: dict[str, dict[str, Any]] = {}
    for entry in entries:
        content = dict(entry.value)
        if entry.kind == "pool":
            if content.get("removed"):
                continue
            # As in a file of settings.
            content = content["settings"]
        tables.setdefault(table_of(entry.kind), {})[entry.name] = content
    return tomli_w.dumps(tables)


def shown(differences: Sequence[RegistryDifference]) -> Text:
    """Draw what changes, as lines with + and -."""
    text = Text()
    for one in differences:
        before, after = (None if value is None else _lines(value) for value in (one.before, one.after))
        sign, style = ("+", "green") if before is None else ("-", "red") if after is None else ("~", "yellow")
        text.append(f"{sign} {one.kind} {one.name}\n", style=f"bold {style}")
        for line in difflib.ndiff(before or [], after or []):
            if line.startswith("?"):
                continue
            text.append(f"    {line}\n", style={"+": "green", "-": "red"}.get(line[0], "dim"))
    return text


def _lines(value: Mapping[str, Any]) -> list[str]:
    import tomli_w

    return tomli_w.dumps(dict(value)).splitlines()
