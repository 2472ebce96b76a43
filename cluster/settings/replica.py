"""Settings of replicas."""

from __future__ import annotations

from pydantic import Field, model_validator

from cluster.settings.section import FilePath, Host, Section


class ReplicaTlsSettings(Section):
    """Mutual TLS between routers and replicas; this section switches it on. Each process reads the files of its own
    machine under these names. Files are PEM and are read again when they change.
    """

    certificate_file: FilePath
    """Certificate of this process; a replica's must carry `server_name` among its DNS names."""
    private_key_file: FilePath
    """Private key of the certificate, not encrypted."""
    ca_file: FilePath
    """Certificate of the authority that signs the certificates of routers and replicas. Use an authority of this
    cluster alone: any holder of its certificates may connect, and must then still prove the cluster secret."""
    server_name: str = Field(default="penstock-replica", min_length=1)
    """DNS name in every replica's certificate. Routers connect by address, which certificates need not contain."""


class ReplicaSettings(Section):
    """Replicas of all pools."""

    tls: ReplicaTlsSettings | None = None
    """Mutual TLS between routers and replicas. Default: no TLS; both ends still prove the cluster secret."""
    host: Host = "127.0.0.1"
    """Address at which routers reach a replica. With several machines, set the machine's own address."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port for routers. 0 takes a free one; a fixed port needs an address of its own for every replica."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port of the Prometheus endpoint; 0 takes a free one."""
    drain_s: float = Field(default=30.0, ge=0)
    """Seconds that running sequences may continue when the replica is stopped."""
    retained_log_mb: int = Field(default=64, ge=1)
    """Most MiB of finished output that a replica keeps until routers have acknowledged it, so that they can attach
    again."""

    @model_validator(mode="after")
    def _ports_differ(self) -> ReplicaSettings:
        # Without this check the second of the two servers would fail only after the engine has started.
        if self.port and self.port == self.metrics_port:
            raise ValueError(f"metrics_port must not be port = {self.port}, got {self.metrics_port}")
        return self
