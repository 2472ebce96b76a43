"""Kinds of the Gateway API whose definitions are not in CRD_DIR: the fields that the chart uses, as version 1.4 has
them.
"""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

_NAME: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 253}
_HOST: dict[str, Any] = {
    "type": "string",
    "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
}
_GROUP: dict[str, Any] = {"type": "string", "maxLength": 253}
_KIND: dict[str, Any] = {"type": "string", "pattern": "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$", "maxLength": 63}
_PORT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 65535}
_TIME: dict[str, Any] = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}


def _object(required: tuple[str, ...] = (), **fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": fields, "additionalProperties": False}


def _list(items: dict[str, Any], least: int = 0, most: int = 16) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


_PARENT = _object(("name",), group=_GROUP, kind=_KIND, name=_NAME, namespace=_NAME, sectionName=_NAME, port=_PORT)
_BACKEND = _object(
    ("name",), group=_GROUP, kind=_KIND, name=_NAME, namespace=_NAME, port=_PORT, weight={"type": "integer"}
)
_ROUTE = _object(
    parentRefs=_list(_PARENT, most=32),
    hostnames=_list(_HOST),
    rules=_list(
        _object(backendRefs=_list(_BACKEND), timeouts=_object(request=_TIME, backendRequest=_TIME), matches={}), least=1
    ),
)
_REFERENCE = _object(("group", "kind", "name"), group=_GROUP, kind=_KIND, name=_NAME)
_TARGET = _object(("group", "kind", "name"), group=_GROUP, kind=_KIND, name=_NAME, sectionName=_NAME)
_VALIDATION = {
    **_object(
        ("hostname",),
        hostname=_HOST,
        caCertificateRefs=_list(_REFERENCE, most=8),
        wellKnownCACertificates={"enum": ["System"]},
    ),
    # A rule of the definition: one of them, and not both.
    "oneOf": [{"required": ["caCertificateRefs"]}, {"required": ["wellKnownCACertificates"]}],
}
_SPECS = {
    "HTTPRoute": _ROUTE,
    "BackendTLSPolicy": _object(
        ("targetRefs", "validation"), targetRefs=_list(_TARGET, least=1), validation=_VALIDATION, options={}
    ),
}
VERSION = "gateway.networking.k8s.io/v1"


def is_known(resource: dict[str, Any]) -> bool:
    """Return whether a resource is of one of these kinds."""
    return resource["apiVersion"] == VERSION and resource["kind"] in _SPECS


def check(resource: dict[str, Any]) -> list[str]:
    """Return what an API server would say against a resource."""
    errors = Draft202012Validator(_SPECS[resource["kind"]]).iter_errors(resource["spec"])
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in errors]
