"""An authenticated caller."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from penstock.models import RequestClass


class Role(enum.IntEnum):
    """Role of a caller. Each role may read what the ones before it may."""

    USER = 0
    """Generate, cancel and watch its own tenant's requests and jobs."""
    TENANT_OPERATOR = 1
    """Also manage its own tenant's keys, and read what of the cluster's state is its tenant's."""
    OPERATOR = 2
    """Read the state of the cluster and of every tenant, and change neither."""
    ADMIN = 3
    """Also change the cluster."""


class CredentialKind(enum.Enum):
    """Kind of proof by which a caller is known. Values are words of messages."""

    NONE = "none"
    """No proof: callers without credentials are let in."""
    API_KEY = "API key"
    CERTIFICATE = "client certificate"
    TOKEN = "token"  # noqa: S105 - no secret
    """Token of an issuer."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Proof by which a caller is known."""

    kind: CredentialKind = CredentialKind.NONE
    name: str = ""
    """Public name: the id of a key, the name of a certificate's entry, or that of a token's issuer in the settings."""
    expires_ms: float = float("inf")
    """Milliseconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Caller of the API. Requests, jobs and quotas belong to the tenant, never to the key that was used."""

    tenant: str
    role: Role = Role.USER
    models: frozenset[str] | None = None
    """Models it may use; None for all."""
    classes: frozenset[RequestClass] | None = None
    """Request classes it may use; None for all."""
    credential: Credential = field(default=Credential(), compare=False)
    """How it is known. Callers with the same rights are equal, however they are known."""

    @property
    def api_key(self) -> str:
        """Public id of the key that it called with; empty where it called with none."""
        return self.credential.name if self.credential.kind is CredentialKind.API_KEY else ""


ANONYMOUS = Caller("anonymous", Role.ADMIN)
"""The caller of every call where no credentials are required."""
