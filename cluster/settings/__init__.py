"""One typed tree of settings, from defaults, a TOML file, the environment and flags, later ones winning."""

from cluster.settings.load import load_settings
from cluster.settings.tree import (
    ClassShares,
    ClusterSettings,
    EngineKind,
    PoolSettings,
    QueueSettings,
    QuotaSettings,
    RedisSettings,
    ReplicaSettings,
    RouterSettings,
    Settings,
    SimSettings,
    SpeculativeSettings,
    TenantSettings,
    VllmSettings,
)

__all__ = [
    "ClassShares",
    "ClusterSettings",
    "EngineKind",
    "PoolSettings",
    "QueueSettings",
    "QuotaSettings",
    "RedisSettings",
    "ReplicaSettings",
    "RouterSettings",
    "Settings",
    "SimSettings",
    "SpeculativeSettings",
    "TenantSettings",
    "VllmSettings",
    "load_settings",
]
