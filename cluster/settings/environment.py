"""Settings from environment variables: PENSTOCK_ROUTER__PORT=1 sets router.port. A variable that sets nothing is an
error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cluster.errors import SettingsError
from cluster.nearest import nearest

ENV_PREFIX = "PENSTOCK_"
FILE_VARIABLE = "PENSTOCK_SETTINGS"
"""Variable that names the TOML file when no flag does."""
NOT_SETTINGS = frozenset(
    {
        FILE_VARIABLE,
        # Read by commands, benchmarks and engines.
        *("PENSTOCK_API_KEY", "PENSTOCK_COMPILED_SIMULATOR", "PENSTOCK_DATA", "PENSTOCK_ENGINE_NAP_US"),
        "PENSTOCK_REPLICA_PID",
        "PENSTOCK_SPARE_ADAPTER_SLOT",
        "PENSTOCK_START_REPORT",
        # Read by tests, whose processes pass them on.
        *("PENSTOCK_MODEL", "PENSTOCK_RAY_FAULTS", "PENSTOCK_STORES", "PENSTOCK_TARGET", "PENSTOCK_TEST_REDIS"),
    }
)
"""Variables with our prefix that are no settings."""

_JSON: TypeAdapter[Any] = TypeAdapter(Any)
_LINK = re.compile(r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9]+)*|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_LINK_URL = re.compile(r"(tcp|udp|sctp)://")


class Environment:
    """Settings of the environment, read once.

    Names of pools, tenants and adapters from a file or a flag match in any case, because variables are upper case by
    custom. New names become lower case, or stay as spelt within JSON.
    """

    def __init__(self, environ: Mapping[str, str], known: Mapping[str, Any], sections: Collection[str]) -> None:
        """Read the variables.

        Args:
            environ: all variables.
            known: the tree of files and flags, whose names are matched.
            sections: names of the tree's own fields.
        """
        self.problems: list[str] = []
        """One sentence per variable that sets nothing, or what another one sets, too."""
        self.tree: dict[str, Any] = {}
        self.variables: dict[tuple[str, ...], str] = {}
        """Variable that gave the value, by path."""
        self._known = known
        names = [name for name, text in environ.items() if name.startswith(ENV_PREFIX) and not _is_other(name, text)]
        # Whole sections first, so that variables of single keys match the names within them.
        for name in sorted(names, key=lambda each: (each.count("__"), each)):
            try:
                self._read(name, environ[name], sections)
            except SettingsError as error:
                self.problems.append(str(error))

    def _read(self, name: str, text: str, sections: Collection[str]) -> None:
        parts = name.removeprefix(ENV_PREFIX).split("__")
        if parts[0].lower() not in sections:
            raise SettingsError(f"{name}: unknown variable{_suggestion(name, sections)}")
        value = _parse(text)
        if len(parts) == 1 and not isinstance(value, dict):
            raise SettingsError(f"{name}: must be a JSON object; a single key of it is {name}__<KEY>")
        self._set(self._path(name, parts), value, name)

    def _path(self, name: str, parts: list[str]) -> tuple[str, ...]:
        path: list[str] = []
        trees: list[Mapping[str, Any]] = [self._known, self.tree]
        nodes = trees
        for part in parts:
            if path[1:] and path[-1] == "pools":
                # A tenant's quotas have names of pools as keys, also of pools that the tenant does not name elsewhere.
                nodes = nodes + [pools for tree in trees if isinstance(pools := tree.get("pools"), Mapping)]
            found = sorted({key for node in nodes for key in node if key.lower() == part.lower()})
            if len(found) > 1:
                raise SettingsError(f"{name}: may mean any of {', '.join(found)}; set it in the file")
            key = found[0] if found else part.lower()
            path.append(key)
            nodes = [node[key] for node in nodes if isinstance(node.get(key), Mapping)]
        return tuple(path)

    def _set(self, path: tuple[str, ...], value: Any, name: str) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                self._set((*path, key), inner, name)
            return
        node = self.tree
        for end, key in enumerate(path[:-1], 1):
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                raise SettingsError(f"{name}: {self.variables[path[:end]]} gives {'.'.join(path[:end])} as a whole")
        if path[-1] in node:
            other = self.variables.get(path, "another variable")
            raise SettingsError(f"{name}: {other} sets {'.'.join(path)}, too")
        node[path[-1]] = value
        self.variables[path] = name


def _is_other(name: str, text: str) -> bool:
    """Return whether the variable is no setting. Kubernetes gives pods variables named after each Service of their
    namespace, and a Service may be called penstock-router.
    """
    if name in NOT_SETTINGS:
        return True
    if "__" in name:
        return False
    is_url = name.endswith("_PORT") and _LINK_URL.match(text) is not None
    return is_url or _LINK.fullmatch(name.removeprefix(ENV_PREFIX)) is not None


def _suggestion(name: str, sections: Collection[str]) -> str:
    rest = name.removeprefix(ENV_PREFIX)
    for section in sorted(sections, key=len, reverse=True):
        if rest.lower().startswith(f"{section}_"):
            return f"; did you mean {ENV_PREFIX}{rest[: len(section)]}__{rest[len(section) + 1 :].lstrip('_')}?"
    section, mark, key = rest.partition("__")
    if mark and (near := nearest(section.lower(), sections)):
        return f"; did you mean {ENV_PREFIX}{near.upper()}{mark}{key}?"
    return f"; settings are {ENV_PREFIX}<SECTION>__<KEY>"


def _parse(text: str) -> Any:
    try:
        return _JSON.validate_json(text)
    except ValidationError:
        return text
