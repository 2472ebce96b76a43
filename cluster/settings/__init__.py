"""One typed tree of settings, from defaults, a TOML file, the environment and flags, later ones winning."""

from cluster.settings.access import Access, access_of, is_loopback
from cluster.settings.load import load_settings
from cluster.settings.tree import (
    AuthSettings,
    ClassShares,
    ClusterSettings,
    EngineKind,
    JobsSettings,
    PoolSettings,
    QueueSettings,
    QuotaSettings,
    RedisSettings,
    ReplicaSettings,
    ReplicaTlsSettings,
    RouterSettings,
    RouterTlsSettings,
    Settings,
    SimSettings,
    SpeculativeSettings,
    TenantSettings,
    VllmSettings,
)

__all__ = [
    "Access",
    "AuthSettings",
    "ClassShares",
    "ClusterSettings",
    "EngineKind",
    "JobsSettings",
    "PoolSettings",
    "QueueSettings",
    "QuotaSettings",
    "RedisSettings",
    "ReplicaSettings",
    "ReplicaTlsSettings",
    "RouterSettings",
    "RouterTlsSettings",
    "Settings",
    "SimSettings",
    "SpeculativeSettings",
    "TenantSettings",
    "VllmSettings",
    "access_of",
    "is_loopback",
    "load_settings",
]
