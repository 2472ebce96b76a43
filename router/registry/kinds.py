"""Kinds of entries: how the content of each is checked, and where the settings declare it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from cluster.registry import pools
from cluster.registry.pools import PoolEntry
from cluster.settings import AliasSettings, EngineKind, Settings, TenantSettings
from cluster.settings.adapters import AdapterSettings
from cluster.settings.load import list_errors
from cluster.settings.section import Section
from cluster.trust.masking import HIDDEN, masked_tree, still_masked
from penstock.models import FieldViolation
from router.identity.keys_file import KeyEntry

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_KEY_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)


def _nothing(_settings: Settings) -> Mapping[str, Section]:
    return {}


def _no_problem(_settings: Settings, _name: str, _section: Any) -> Iterable[tuple[str, str]]:
    return ()


def _pool_problems(_settings: Settings, _name: str, entry: PoolEntry) -> Iterable[tuple[str, str]]:
    for path in still_masked(entry.model_dump(mode="json", exclude_unset=True)):
        yield ".".join(path), f"must be the secret itself: {HIDDEN!r} stands for one that is not shown"


def _adapter_problems(settings: Settings, name: str, adapter: AdapterSettings) -> Iterable[tuple[str, str]]:
    pool = settings.pools.get(adapter.pool)
    if pool is None:
        yield "pool", f"must be one of {', '.join(sorted(settings.pools))}, got {adapter.pool!r}"
    elif not (pool.sim.max_loras if pool.engine is EngineKind.SIM else pool.vllm.adapter_slots):
        yield "pool", f"must be a pool that takes adapters (vllm.max_loras above 0), got {adapter.pool!r}"


Content = TypeVar("Content", bound=Section)


@dataclass(frozen=True, slots=True)
class Kind(Generic[Content]):
    """Kind of entries."""

    name: str
    table: str
    """Name of the table in a TOML file."""
    section: type[Content]
    """Group of settings that an entry is checked as."""
    name_field: str = ""
    """Field of the group that has the entry's name; empty where the name stands outside."""
    hidden: tuple[str, ...] = ()
    """Fields that are not shown, and that an edit without them leaves as they are."""
    defaults: bool = True
    """Whether fields that were given as their defaults are kept."""
    names: re.Pattern[str] = _NAME
    """Names that entries may have."""
    declared: Callable[[Settings], Mapping[str, Section]] = _nothing
    """Function that returns the entries of the settings."""
    problems: Callable[[Settings, str, Any], Iterable[tuple[str, str]]] = _no_problem
    """Function from the settings, an entry's name and its content to what does not fit, as field and problem. An empty
    field is the name.
    """

    def read(self, name: str, value: Mapping[str, Any], settings: Settings, place: str) -> Content:
        """Check the content of an entry.

        Raises:
            WrongEntryError: names every wrong field.
        """
        given = {self.name_field: name, **value} if self.name_field else dict(value)
        wrong: list[FieldViolation] = []
        if self.names.fullmatch(name) is None:
            wrong.append(FieldViolation(f"{place}.name", f"must match {self.names.pattern}, got {name!r}"))
        else:
            try:
                section = self.section.model_validate(given)
            except ValidationError as error:
                for line in list_errors(error, self.hidden, root=self.section):
                    field, _, problem = line.partition(": ")
                    inner = "" if field == "settings" else f".{field}"
                    wrong.append(FieldViolation(f"{place}.value{inner}", problem))
            else:
                wrong += [
                    FieldViolation(f"{place}.value.{field}" if field else f"{place}.name", problem)
                    for field, problem in self.problems(settings, name, section)
                ]
        if wrong:
            raise WrongEntryError(wrong)
        return section

    def write(self, section: Section) -> bytes:
        """Return the content of an entry as the registry keeps it."""
        return json.dumps(self.fields(section), ensure_ascii=False, separators=(",", ":")).encode()

    def fields(self, section: Section) -> dict[str, Any]:
        """Return the fields of an entry that were given."""
        fields = section.model_dump(
            mode="json", exclude_unset=True, exclude_none=True, exclude_defaults=not self.defaults
        )
        fields.pop(self.name_field, None)
        return fields

    def declared_fields(self, section: Section) -> dict[str, Any]:
        """Return the fields of an entry of the settings. A process that was handed its settings by another one has all
        of them, so those with their defaults are left out.
        """
        fields = section.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        fields.pop(self.name_field, None)
        return fields

    def same(self, name: str, one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
        """Return whether two contents mean the same; None is no entry."""
        if one == other or one is None or other is None:
            return one == other
        try:
            read, again = (self.load(name, json.dumps(each).encode()) for each in (one, other))
        except ValueError:
            return False
        return self.declared_fields(read) == self.declared_fields(again)

    def load(self, name: str, value: bytes) -> Content:
        """Read the content of an entry of the registry. It was checked when it was made.

        Raises:
            ValueError: another version wrote it, in a way that this one can't read.
        """
        given = json.loads(value)
        return self.section.model_validate({self.name_field: name, **given} if self.name_field else given)

    def shown(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields without the hidden ones and their secrets."""
        return masked_tree({name: value for name, value in fields.items() if name not in self.hidden})


class WrongEntryError(Exception):
    """Content of an entry that is not as it must be."""

    def __init__(self, wrong: list[FieldViolation]) -> None:
        self.wrong = wrong
        super().__init__("; ".join(f"{one.field}: {one.description}" for one in wrong))


TENANT = Kind(
    "tenant",
    "tenants",
    TenantSettings,
    declared=lambda settings: settings.tenants,
    problems=lambda settings, _name, tenant: tenant.problems(settings.pools, settings.queue.ledger_days),
)
ADAPTER = Kind("adapter", "adapters", AdapterSettings, problems=_adapter_problems)
KEY = Kind("key", "keys", KeyEntry, name_field="id", hidden=("sha256",), names=_KEY_ID)

POOL = Kind(
    pools.KIND,
    "pools",
    PoolEntry,
    hidden=("base",),
    # A pool has a hundred, and the settings that a process passes on have them all.
    defaults=False,
    declared=lambda settings: {name: PoolEntry(settings=pool) for name, pool in settings.pools.items()},
    problems=_pool_problems,
)
ALIAS = Kind(
    "alias",
    "aliases",
    AliasSettings,
    declared=lambda settings: settings.aliases,
    problems=lambda settings, name, alias: alias.problems(name, settings.pools),
)

KINDS: Mapping[str, Kind[Any]] = {kind.name: kind for kind in (TENANT, KEY, ADAPTER, ALIAS, POOL)}
"""All kinds by name."""
