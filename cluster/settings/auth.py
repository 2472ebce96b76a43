"""Settings of routers' callers: API keys, tokens of issuers, and guesses."""

from __future__ import annotations

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from cluster.addresses import is_loopback
from cluster.settings.section import FilePath, PoolName, Section, TenantName

RoleName = Literal["user", "tenant_operator", "operator", "admin"]
ClassName = Literal["interactive", "standard", "batch"]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Algorithms with a public key. `none`, and those with a shared secret (HS256 and its like), are not among them: a
router that took both could be given its issuer's public key as such a secret."""
ANONYMOUS_TENANT = "anonymous"
"""Tenant of callers without credentials."""


def _own_tenant(name: str) -> str:
    if name == ANONYMOUS_TENANT:
        raise ValueError(f"tenant {ANONYMOUS_TENANT!r} is kept for callers without credentials")
    return name


def _safe_url(url: str) -> str:
    if problem := unsafe_url(url):
        raise ValueError(problem)
    return url


def unsafe_url(url: str) -> str | None:
    """Return why keys must not be fetched from an address; None for one that is good."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    if parts.scheme == "https" and host:
        return None
    if parts.scheme == "http" and is_loopback(host):
        return None
    return f"must begin with https:// (http:// only for this machine), got {url[:200]!r}"


CallerTenant = Annotated[TenantName, AfterValidator(_own_tenant)]
SafeUrl = Annotated[str, AfterValidator(_safe_url)]
Claim = Annotated[str, Field(min_length=1, max_length=256)]
"""Name of a claim. One that begins with / is a JSON Pointer to a claim within others, such as
/kubernetes.io/namespace."""


class IssuerSettings(Section):
    """An issuer of JSON Web Tokens (JWT), such as an OpenID Connect provider. A claim is named by its name; a name that
    begins with / is a JSON Pointer, such as /kubernetes.io/namespace.
    """

    issuer: Annotated[str, Field(min_length=1, max_length=1024)]
    """Value of the claim `iss`, letter by letter. Keys come from `<issuer>/.well-known/openid-configuration`, unless
    jwks_url or jwks_file is set."""
    audiences: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1, max_length=64)
    """Values of the claim `aud` that are meant for this cluster. A token needs one of them."""
    jwks_url: SafeUrl | None = None
    """Address of the issuer's public keys, a JSON Web Key Set. Default: the one that the issuer names."""
    jwks_file: FilePath | None = None
    """File with the issuer's public keys, instead of an address. It is read again when it changes."""
    ca_file: FilePath | None = None
    """Certificates of the authorities that sign the issuer's certificate. Default: those of the system."""
    token_file: FilePath | None = None
    """File with a bearer token for the address of the keys, read at every request; needs jwks_url. Kubernetes' API
    server asks for one."""
    algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"), min_length=1
    )
    """Algorithms of signatures that are accepted. Only those with a public key exist here."""
    leeway_s: float = Field(default=30.0, ge=0, le=600)
    """Seconds by which the clocks of issuer and router may differ: tokens are valid so much earlier and longer."""
    refresh_s: float = Field(default=300.0, ge=1, le=86_400)
    """Seconds between two requests for the keys. A key that the issuer has withdrawn is accepted for so long."""
    min_refresh_s: float = Field(default=10.0, ge=0.1, le=3_600)
    """Least seconds between two requests, also where tokens name keys that are not known: a stranger must not be able
    to make routers flood the issuer."""
    keep_s: float = Field(default=86_400.0, ge=1)
    """Seconds for which known keys stay in force while the issuer can't be reached."""
    require: dict[Claim, str] = {}  # noqa: RUF012 - pydantic copies it
    """Claims that a token must have, with their values; of a list, one value."""
    tenant: CallerTenant | None = None
    """Tenant of all tokens; this or tenant_claim."""
    tenant_claim: Claim | None = None
    """Claim whose value is the tenant, or names it in `tenants`."""
    tenants: dict[str, CallerTenant] = {}  # noqa: RUF012 - pydantic copies it
    """Tenants by value of tenant_claim. Tokens with other values are refused. Default: the value is the tenant's name
    itself."""
    role: RoleName | Literal["none"] = "user"
    """Role of tokens whose role_claim has no value of `roles`; "none" refuses them."""
    role_claim: Claim | None = None
    """Claim with roles or groups: a text, words with spaces between them, or a list."""
    roles: dict[str, RoleName] = {}  # noqa: RUF012 - pydantic copies it
    """Roles by value of role_claim. Of several values the one with the highest role counts."""
    models: tuple[PoolName, ...] | None = None
    """Models that tokens may use. Default: all."""
    models_claim: Claim | None = None
    """Claim with the models that a token may use: a list, or words with spaces between them. Those that are not in
    `models` do not count, and a token without the claim may use none."""
    classes: tuple[ClassName, ...] | None = None
    """Request classes that tokens may use. Default: all."""
    classes_claim: Claim | None = None
    """Claim with the request classes that a token may use, as models_claim."""

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if self.jwks_url is not None and self.jwks_file is not None:
            raise ValueError("jwks_url and jwks_file exclude each other")
        if self.jwks_url is None and self.jwks_file is None and (problem := unsafe_url(self.issuer)):
            raise ValueError(f"issuer {problem}; or set jwks_url or jwks_file")
        if self.token_file is not None and self.jwks_url is None:
            raise ValueError("token_file needs jwks_url, so that the token goes to no address but this one")
        return self

    @model_validator(mode="after")
    def _has_rights(self) -> Self:
        if (self.tenant is None) == (self.tenant_claim is None):
            raise ValueError("exactly one of tenant and tenant_claim must be given")
        if self.tenants and self.tenant_claim is None:
            raise ValueError("tenants needs tenant_claim")
        if bool(self.roles) != (self.role_claim is not None):
            raise ValueError("roles and role_claim need each other")
        if self.role == "none" and not self.roles:
            raise ValueError('role = "none" needs roles, because no token could get in')
        return self

    @model_validator(mode="after")
    def _refreshes_in_time(self) -> Self:
        if self.refresh_s < self.min_refresh_s:
            raise ValueError(
                f"refresh_s must be at least min_refresh_s = {self.min_refresh_s:g}, got {self.refresh_s:g}"
            )
        if self.keep_s < self.refresh_s:
            raise ValueError(f"keep_s must be at least refresh_s = {self.refresh_s:g}, got {self.keep_s:g}")
        return self


IssuerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]


class AuthSettings(Section):
    """Callers that routers let in."""

    keys_file: FilePath | None = None
    """TOML file with the API keys and client certificates that are let in; `penstock keys new` writes it. It is read
    again when it changes. Default: no keys."""
    jwt: dict[IssuerName, IssuerSettings] = Field(default={}, max_length=64)
    """Issuers of tokens that are let in, by a name for logs and metrics."""
    anonymous: bool | None = None
    """Whether callers without credentials are let in; they all share one tenant. Default: only where router.host is a
    loopback address and there are neither a keys file nor issuers."""
    anonymous_role: RoleName | None = None
    """Role of callers without credentials. Default: admin where they are let in by the default of `anonymous`, else
    user."""
    failures_per_minute: int = Field(default=60, ge=0, le=100_000)
    """Wrong keys and tokens that one address may send per minute to each router process. Beyond that, what it sends is
    refused without a look, except credentials that were right lately. 0 switches this off."""

    @property
    def credentials(self) -> bool:
        """Whether there are any keys or issuers."""
        return self.keys_file is not None or bool(self.jwt)

    @model_validator(mode="after")
    def _issuers_differ(self) -> Self:
        seen: dict[tuple[str, str], str] = {}
        for name, one in self.jwt.items():
            for audience in one.audiences:
                other = seen.setdefault((one.issuer, audience), name)
                if other != name:
                    raise ValueError(f"jwt.{name}: jwt.{other} has the same issuer and audience {audience!r}")
        return self
