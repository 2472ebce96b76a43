"""Types of fields, read from schemas: which lists and maps are one field, and which are owned piece by piece.

The translation is that of kube-openapi (pkg/schemaconv): a list is atomic unless its schema says otherwise, a map is
granular unless its schema says otherwise, and what no schema describes is judged by its value, with atomic lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.k8s import crds, strict

META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
KEY_DEFAULTS = {"protocol": "TCP"}
"""Defaults of fields that are keys; those schemas of the wheel that are Kubernetes' own have none."""


@dataclass(frozen=True)
class Leaf:
    """A value that is one field."""


@dataclass(frozen=True)
class ListType:
    """A list: atomic, a set (no keys), or a map by keys."""

    element: Schema
    atomic: bool
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class MapType:
    """A structure or a map."""

    fields: Mapping[str, Any]
    """Schemas of named fields."""
    rest: Schema
    """Schema of all others."""
    atomic: bool

    def of(self, name: str, schema: Schema) -> Schema:
        """Return the schema of a field; `schema` is that of the map."""
        return schema.of(self.fields[name]) if name in self.fields else self.rest


Type = Leaf | ListType | MapType


@dataclass(frozen=True, eq=False)
class Schema:
    """A part of a schema, with what it may refer to."""

    raw: Mapping[str, Any]
    definitions: Mapping[str, Any] = field(default_factory=dict)

    def of(self, raw: Mapping[str, Any]) -> Schema:
        """Return another part of the same schema."""
        return Schema(raw, self.definitions)

    def type_of(self, value: Any) -> Type:
        """Return the type of a value that has this schema."""
        raw = self._resolved()
        if raw.get("x-kubernetes-int-or-string"):
            return Leaf()
        if "items" in raw:
            return _list(self, raw)
        if "properties" in raw or isinstance(raw.get("additionalProperties"), dict):
            rest = raw.get("additionalProperties")
            schema = self.of(rest) if isinstance(rest, dict) else Schema({})
            return MapType(raw.get("properties", {}), schema, raw.get("x-kubernetes-map-type") == "atomic")
        if isinstance(value, dict):
            return MapType({}, Schema({}), raw.get("x-kubernetes-map-type") == "atomic")
        return ListType(Schema({}), atomic=True) if isinstance(value, list) else Leaf()

    def _resolved(self) -> Mapping[str, Any]:
        raw = self.raw
        while "$ref" in raw:
            extensions = {name: value for name, value in raw.items() if name.startswith("x-")}
            raw = {**self.definitions[raw["$ref"].rpartition("/")[2]], **extensions}
        return raw


def _list(schema: Schema, raw: Mapping[str, Any]) -> ListType:
    kind, element = raw.get("x-kubernetes-list-type"), schema.of(raw["items"])
    if kind == "map":
        return ListType(element, atomic=False, keys=tuple(sorted(raw["x-kubernetes-list-map-keys"])))
    if kind == "set":
        return ListType(element, atomic=False)
    if kind is None and "merge" in raw.get("x-kubernetes-patch-strategy", "").split(","):
        key = raw.get("x-kubernetes-patch-merge-key")
        return ListType(element, atomic=False, keys=(key,) if key else ())
    return ListType(element, atomic=True)


def schema_of(resource: dict[str, Any], version: str) -> Schema:
    """Return the schema of a resource for an API server of a version, such as "1.34"."""
    definitions = strict.definitions(version)
    if crds.is_unknown(resource):
        return Schema({"properties": {"metadata": {"$ref": META}}}, definitions)
    if (raw := crds.schemas().get((resource["apiVersion"], resource["kind"]))) is None:
        return Schema(strict.schema(resource, version), definitions)
    return Schema({**raw, "properties": {**raw["properties"], "metadata": {"$ref": META}}}, definitions)
