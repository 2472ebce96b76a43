"""Replicas."""

from __future__ import annotations

from pydantic import Field, model_validator

from cluster.settings.section import FilePath, Host, Section


class ReplicaTlsSettings(Section):
    """Switches mutual TLS on for links. Routers and replicas each read their own machine's files under these names.
    Files are PEM and read again when they change.
    """

    certificate_file: FilePath
    """What this end shows; for replicas it carries `server_name`."""
    private_key_file: FilePath
    """Not encrypted."""
    ca_file: FilePath
    """Who signs the certificates of both ends; an authority of this cluster alone, because whoever has a certificate of
    it may connect (and must then still prove the cluster secret)."""
    server_name: str = Field(default="penstock-replica", min_length=1)
    """DNS name in every replica's certificate; replicas are dialled by address, which certificates need not know."""


class ReplicaSettings(Section):
    """Configures every replica."""

    tls: ReplicaTlsSettings | None = None
    """Default: links speak in the clear; both ends still prove the cluster secret."""
    host: Host = "127.0.0.1"
    """Address that routers dial; on a cluster of machines the node's own address."""
    port: int = Field(default=0, ge=0, le=65535)
    """Of the inner server. 0 takes a free one; a fixed one needs an address of its own for every replica."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free port."""
    drain_s: float = Field(default=30.0, ge=0)
    """How long running sequences may go on when the replica is stopped."""
    retained_log_mb: int = Field(default=64, ge=1)
    """Bound of finished output that is kept for a re-attach."""

    @model_validator(mode="after")
    def _ports_differ(self) -> ReplicaSettings:
        # Only the second of the two would find out, after the engine has started.
        if self.port and self.port == self.metrics_port:
            raise ValueError(f"metrics_port must not be port = {self.port}, got {self.metrics_port}")
        return self
