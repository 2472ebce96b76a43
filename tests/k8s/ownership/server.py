"""Keeps objects with the managers of their fields, as an API server does."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.k8s import crds
from tests.k8s.charts import Object
from tests.k8s.ownership.fields import ABSENT, compare, merge, owned, remove, with_named_fields
from tests.k8s.ownership.paths import Path, Paths, at, text
from tests.k8s.ownership.schema import Schema, schema_of

UNOWNED = frozenset(
    {
        at("apiVersion"),
        at("kind"),
        at("metadata"),
        *(
            at("metadata", name)
            for name in (
                "name", "namespace", "creationTimestamp", "uid", "generation", "managedFields", "resourceVersion",
            )
        ),
    }
)  # fmt: skip
"""Fields that have no manager (managedfields/internal/stripmeta.go)."""
STATEFUL = frozenset(
    {
        "replicas", "template", "updateStrategy", "minReadySeconds", "persistentVolumeClaimRetentionPolicy", "ordinals",
        "revisionHistoryLimit",
    }
)  # fmt: skip
"""Fields of a StatefulSet that may change."""


class RefusedError(Exception):
    """Says why a server does not take something."""


class ConflictError(RefusedError):
    """Says which fields belong to others, in an API server's words."""


@dataclass(frozen=True, order=True)
class Manager:
    """One entry of managedFields."""

    name: str
    operation: str
    version: str
    subresource: str = ""

    def __str__(self) -> str:
        part = f' with subresource "{self.subresource}"' if self.subresource else ""
        return f'"{self.name}"{part}' + (f" using {self.version}" if self.operation == "Update" else "")


@dataclass
class Stored:
    """An object, and who owns what of it."""

    object: Object
    managers: dict[Manager, Paths] = field(default_factory=dict)


@dataclass
class Server:
    """Holds the objects of one namespace."""

    version: str
    """Version of Kubernetes, such as "1.34"."""
    kept: dict[tuple[str, str], Stored] = field(default_factory=dict)

    def get(self, kind: str, name: str) -> Object:
        """Return a copy of an object."""
        return copy.deepcopy(self.kept[kind, name].object)

    def owners(self, kind: str, name: str, *path: str) -> set[str]:
        """Return the managers of a field."""
        stored = self.kept[kind, name]
        return {manager.name for manager, paths in stored.managers.items() if at(*path) in paths}

    def apply(self, config: Object, manager: str, *, force: bool = False) -> Object:
        """Take what somebody wants of an object.

        Raises:
            ConflictError: it would change what somebody else owns, and `force` is off.
            RefusedError: it changes what can't be changed.
        """
        config = without_nulls(config)
        schema = schema_of(config, self.version)
        before = self.kept.get(identity(config))
        live = before.object if before else _bare(config)
        managers = dict(before.managers) if before else {}
        me = Manager(manager, "Apply", config["apiVersion"])
        last = managers.get(me, frozenset())
        managers[me] = owned(config, schema) - UNOWNED
        merged = _pruned(merge(live, config, schema), schema, last, managers)
        managers = _settled(live, merged, schema, managers, me, force=force)
        return self._keep(before, merged, managers)

    def update(self, changed: Object, manager: str, subresource: str = "") -> Object:
        """Take a whole object from somebody who read it before: what is different is theirs from then on.

        Raises:
            RefusedError: it changes what can't be changed.
        """
        changed = without_nulls(changed)
        schema = schema_of(changed, self.version)
        before = self.kept.get(identity(changed))
        live = before.object if before else _bare(changed)
        managers = dict(before.managers) if before else {}
        me = Manager(manager, "Update", changed["apiVersion"], subresource)
        managers = _settled(live, changed, schema, managers, me, force=True)
        found = compare(live, changed, schema)
        mine = (managers.get(me, frozenset()) - found.removed) | found.modified | found.added
        managers[me] = mine - UNOWNED
        return self._keep(before, changed, {name: paths for name, paths in managers.items() if paths})

    def delete(self, resource: Object) -> None:
        """Take an object away, if it is there."""
        self.kept.pop(identity(resource), None)

    def _keep(self, before: Stored | None, changed: Object, managers: dict[Manager, Paths]) -> Object:
        complete = _defaulted(changed)
        if before is not None:
            for complaint in _forbidden(before.object, complete):
                raise RefusedError(complaint)
        self.kept[identity(complete)] = Stored(complete, managers)
        return copy.deepcopy(complete)


def identity(resource: Object) -> tuple[str, str]:
    """Return what an object is known by."""
    return resource["kind"], resource["metadata"]["name"]


def without_nulls(value: Any) -> Any:
    """Return a copy of a value without fields that are null."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _bare(resource: Object) -> Object:
    metadata = {name: resource["metadata"][name] for name in ("name", "namespace") if name in resource["metadata"]}
    return {"apiVersion": resource["apiVersion"], "kind": resource["kind"], "metadata": metadata}


def _settled(
    live: Object, new: Object, schema: Schema, managers: dict[Manager, Paths], me: Manager, *, force: bool
) -> dict[Manager, Paths]:
    """Return the managers after a change, of whom nobody owns what another one changed (merge/update.go, update)."""
    found = compare(live, new, schema)
    changed = found.modified | found.added
    conflicts = {name: mine for name, paths in managers.items() if name != me and (mine := paths & changed)}
    if conflicts and not force:
        raise ConflictError(_words(conflicts))
    left = {
        name: paths if name == me else paths - conflicts.get(name, frozenset()) - found.removed
        for name, paths in managers.items()
    }
    return {name: paths for name, paths in left.items() if paths}


def _words(conflicts: dict[Manager, Paths]) -> str:
    single = [(manager, path) for manager, paths in sorted(conflicts.items()) for path in sorted(paths, key=text)]
    if len(single) == 1:
        return f"Apply failed with 1 conflict: conflict with {single[0][0]}: {text(single[0][1])}"
    lines = []
    for manager in sorted(conflicts):
        lines.append(f"conflicts with {manager}:")
        lines += [f"- {text(path)}" for owner, path in single if owner == manager]
    return f"Apply failed with {len(single)} conflicts: " + "\n".join(lines)


def _pruned(merged: Object, schema: Schema, last: Paths, managers: dict[Manager, Paths]) -> Object:
    """Take away what its manager applied before and nobody applies now (merge/update.go, prune)."""
    if not last:
        return merged
    mine = with_named_fields(last, schema)
    pruned = remove(merged, schema, mine)
    every = with_named_fields(owned(merged, schema), schema)
    applied = frozenset[Path]().union(*(paths for name, paths in managers.items() if name.operation == "Apply"))
    kept = with_named_fields(_all(pruned, schema), schema) | with_named_fields(applied, schema)
    pruned = remove(merged, schema, every - kept)
    # What nobody applied is not taken away because something beside it is.
    dangling = (every - with_named_fields(_all(pruned, schema), schema)) & mine
    result = remove(merged, schema, dangling)
    return _bare(merged) if result is ABSENT else result


def _all(value: Any, schema: Schema) -> Paths:
    return frozenset() if value is ABSENT else owned(value, schema)


def _defaulted(resource: Object) -> Object:
    if (resource["apiVersion"], resource["kind"]) in crds.schemas():
        return crds.stored(resource)
    complete = copy.deepcopy(resource)
    if resource["kind"] == "Service" and complete["spec"].get("clusterIP") != "None":
        # An address is given once (pkg/registry/core/service/storage/alloc.go).
        complete["spec"].setdefault("clusterIP", "10.96.0.10")
        complete["spec"].setdefault("clusterIPs", [complete["spec"]["clusterIP"]])
    return complete


def _forbidden(old: Object, new: Object) -> Iterator[str]:
    """Return what a server says to changes that it never takes (pkg/apis/apps/validation/validation.go)."""
    first, second = old.get("spec", {}), new.get("spec", {})
    name = new["metadata"]["name"]
    if new["kind"] == "StatefulSet" and any(
        first.get(part) != second.get(part) for part in {*first, *second} - STATEFUL
    ):
        yield f'StatefulSet.apps "{name}" is invalid: spec: Forbidden: updates to statefulset spec for some fields'
    if new["kind"] == "Deployment" and first.get("selector") != second.get("selector"):
        yield f'Deployment.apps "{name}" is invalid: spec.selector: field is immutable'
    if new["kind"] == "RoleBinding" and old["roleRef"] != new["roleRef"]:
        yield f'RoleBinding.rbac.authorization.k8s.io "{name}" is invalid: roleRef: cannot change roleRef'
