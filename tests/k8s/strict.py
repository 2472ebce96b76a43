"""Checks objects against the strict schemas of a Kubernetes version, which the kubernetes-validate wheel carries.

Its own function reads megabytes again for every object.
"""

from __future__ import annotations

import functools
import json
import re
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource


def check(each: dict[str, Any], version: str) -> list[str]:
    """Return what the API server of a version, such as "1.34", would say against an object."""
    validator = _validator(version, _name(each))
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(each)]


def schema(each: dict[str, Any], version: str) -> dict[str, Any]:
    """Return the schema of an object's kind. It refers to `definitions`."""
    return _read(version, _name(each))  # type: ignore[no-any-return]


def definitions(version: str) -> dict[str, Any]:
    """Return the parts of all schemas of a version, by name."""
    return _definitions(version).contents["$defs"]  # type: ignore[no-any-return]


def _name(each: dict[str, Any]) -> str:
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", each["apiVersion"])
    return f"{each['kind'].lower()}-{group}"


@functools.cache
def _validator(version: str, name: str) -> Draft202012Validator:
    schema = _read(version, name)
    registry: Registry[Any] = _definitions(version) @ (Resource.from_contents(schema) @ Registry())
    return Draft202012Validator(schema, registry=registry)


@functools.cache
def _definitions(version: str) -> Resource[Any]:
    return Resource.from_contents(_read(version, "_definitions"))


@functools.cache
def _read(version: str, name: str) -> Any:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
