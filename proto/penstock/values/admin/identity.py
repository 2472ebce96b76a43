"""A caller, as the cluster knows it."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.models import RequestClass
from penstock.v1 import admin_pb2
from penstock.wire import moment_from_wire, request_class_from_wire


class Role(enum.StrEnum):
    """Role of a caller. Each role may read what the ones before it may."""

    USER = "user"
    """Generates, and manages its own tenant's requests and jobs."""
    TENANT_OPERATOR = "tenant_operator"
    """Also manages its own tenant's keys, and reads what of the cluster's state is its tenant's."""
    OPERATOR = "operator"
    """Also reads the state of the cluster and of every tenant. It changes neither."""
    ADMIN = "admin"
    """Also changes the cluster."""


class CredentialKind(enum.StrEnum):
    """Kind of proof by which a caller is known."""

    NONE = "none"
    """No proof: the cluster lets callers without credentials in."""
    API_KEY = "api_key"
    CERTIFICATE = "certificate"
    TOKEN = "token"  # noqa: S105 - no secret
    """Token of an issuer, such as an OpenID Connect provider."""
    OTHER = "other"
    """A kind that this release of the client does not know."""


_ROLES: Mapping[int, Role] = {
    admin_pb2.ROLE_TENANT_OPERATOR: Role.TENANT_OPERATOR,
    admin_pb2.ROLE_OPERATOR: Role.OPERATOR,
    admin_pb2.ROLE_ADMIN: Role.ADMIN,
}
_KINDS: Mapping[int, CredentialKind] = {
    admin_pb2.CREDENTIAL_KIND_NONE: CredentialKind.NONE,
    admin_pb2.CREDENTIAL_KIND_API_KEY: CredentialKind.API_KEY,
    admin_pb2.CREDENTIAL_KIND_CERTIFICATE: CredentialKind.CERTIFICATE,
    admin_pb2.CREDENTIAL_KIND_TOKEN: CredentialKind.TOKEN,
}


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller and what it may use."""

    tenant: str
    """Tenant that its requests, jobs and quotas belong to."""
    role: Role
    """Role; the least for one that this release of the client does not know."""
    models: tuple[str, ...]
    """Models of the cluster that it may use, ordered by name."""
    classes: tuple[RequestClass, ...]
    """Classes that its requests may have."""
    credential_kind: CredentialKind
    credential_name: str
    """Public name of the credential: the id of an API key, the certificate's name in the keys file, or the issuer's
    name in the settings. Empty without one."""
    expires_at: datetime.datetime | None
    """Time at which the credential expires, in UTC; None for never."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.WhoAmIResponse) -> Identity:
        return cls(
            tenant=wire.tenant,
            role=_ROLES.get(wire.role, Role.USER),
            models=tuple(wire.models),
            classes=tuple(map(request_class_from_wire, wire.classes)),
            credential_kind=_KINDS.get(wire.credential_kind, CredentialKind.OTHER),
            credential_name=wire.credential_name,
            expires_at=moment_from_wire(wire.expires_at_ms) if wire.HasField("expires_at_ms") else None,
        )
