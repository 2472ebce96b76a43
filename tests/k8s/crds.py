"""Checks custom resources as an API server does: prune nulls, set defaults, validate, then the CEL rules.

Doing it in another order rejects objects that a cluster takes.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celpy
import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]
CRD_DIR = Path(os.environ.get("CRD_DIR") or ROOT.parent / "shared" / "crds")
UNKNOWN_GROUPS = frozenset({"gateway.envoyproxy.io"})
"""Groups whose definitions are not in CRD_DIR."""
UNKNOWN_KINDS = frozenset(
    {("gateway.networking.k8s.io/v1", "HTTPRoute"), ("gateway.networking.k8s.io/v1", "BackendTLSPolicy")}
)
"""Kinds of other groups whose definitions need not be there. `gateway_api` knows the fields that the chart uses."""


def is_unknown(resource: dict[str, Any]) -> bool:
    """Return whether nothing in CRD_DIR describes a custom resource, and nothing has to."""
    key = resource["apiVersion"], resource["kind"]
    return key[0].split("/")[0] in UNKNOWN_GROUPS or (key in UNKNOWN_KINDS and key not in schemas())


@functools.cache
def schemas() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the schema of every apiVersion and kind in CRD_DIR.

    Raises:
        FileNotFoundError: there is no such folder, or nothing in it.
    """
    files = sorted(CRD_DIR.glob("*.yaml"))
    if not files:
        raise FileNotFoundError(f"no CustomResourceDefinitions in {CRD_DIR}; set CRD_DIR")
    found = {}
    for file in files:
        with file.open(encoding="utf-8") as text:
            for crd in yaml.load_all(text, Loader=yaml.CSafeLoader):
                spec = crd["spec"]
                for version in spec["versions"]:
                    key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                    found[key] = version["schema"]["openAPIV3Schema"]
    return found


def check(resource: dict[str, Any]) -> list[str]:
    """Return what an API server would say against a custom resource."""
    schema = schemas()[_key(resource)]
    value = stored(resource)
    errors = [
        f"{'.'.join(map(str, error.path))}: {error.message}" for error in _validator(_key(resource)).iter_errors(value)
    ]
    return errors or list(_cel(value, schema, ""))


def stored(resource: dict[str, Any]) -> dict[str, Any]:
    """Return a custom resource as an API server keeps it: without nulls, with defaults."""
    schema = schemas()[_key(resource)]
    value: dict[str, Any] = _prune_nulls(copy.deepcopy(resource), schema)
    _default(value, schema)
    return value


def _key(resource: dict[str, Any]) -> tuple[str, str]:
    return resource["apiVersion"], resource["kind"]


@functools.cache
def _validator(key: tuple[str, str]) -> Draft202012Validator:
    return Draft202012Validator(_strict(schemas()[key], root=True))


def _strict(schema: dict[str, Any], root: bool = False) -> dict[str, Any]:
    """Make a schema refuse unknown fields, as `kubectl --validate=strict` does, and take ints where strings may be."""
    result = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes")}
    result.pop("format", None)
    result.pop("default", None)
    if result.pop("nullable", False) and "type" in result:
        result["type"] = [result["type"], "null"]
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
        result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "properties" in schema:
        result["properties"] = {name: _strict(each) for name, each in schema["properties"].items()}
        if root:
            result["properties"]["metadata"] = {"type": "object"}
        if not schema.get("x-kubernetes-preserve-unknown-fields") and "additionalProperties" not in schema:
            result["additionalProperties"] = False
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _strict(schema["additionalProperties"])
    if isinstance(schema.get("items"), dict):
        result["items"] = _strict(schema["items"])
    for word in ("allOf", "anyOf", "oneOf"):
        if word in schema and not schema.get("x-kubernetes-int-or-string"):
            # Structural schemas repeat no properties in here, so these stay open.
            result[word] = [{k: v for k, v in each.items() if not k.startswith("x-")} for each in schema[word]]
    return result


def _children(value: Any, schema: dict[str, Any]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Return (key, child, schema of the child)."""
    if isinstance(value, dict):
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for key, child in value.items():
            inner = properties.get(key) or (rest if isinstance(rest, dict) else None)
            if inner is not None:
                yield key, child, inner
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for number, child in enumerate(value):
            yield number, child, schema["items"]


def _prune_nulls(value: Any, schema: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for key in [k for k, v in value.items() if v is None and not properties.get(k, {}).get("nullable")]:
            del value[key]
    for _, child, inner in _children(value, schema):
        _prune_nulls(child, inner)
    return value


def _default(value: Any, schema: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, inner in schema.get("properties", {}).items():
            if key not in value and "default" in inner:
                value[key] = copy.deepcopy(inner["default"])
    for _, child, inner in _children(value, schema):
        _default(child, inner)


def _cel(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", []):
        if "oldSelf" not in rule["rule"] and not _holds(rule["rule"], value):
            yield f"{path or 'object'}: {rule.get('message', rule['rule'])}"
    for key, child, inner in _children(value, schema):
        yield from _cel(child, inner, f"{path}.{key}".lstrip("."))


@functools.cache
def _program(rule: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule))


def _holds(rule: str, value: Any) -> bool:
    return bool(_program(rule).evaluate({"self": celpy.json_to_cel(value)}))
