"""One typed tree of settings, from defaults, a TOML file, the environment and flags, later ones winning."""

from cluster.settings.load import load_settings
from cluster.settings.tree import (
    AffinitySettings,
    ClusterSettings,
    EngineKind,
    LimitSettings,
    PoolSettings,
    QueueSettings,
    RedisSettings,
    ReplicaSettings,
    RouterSettings,
    Settings,
    SimSettings,
    SpeculativeSettings,
    VllmSettings,
)

__all__ = [
    "AffinitySettings",
    "ClusterSettings",
    "EngineKind",
    "LimitSettings",
    "PoolSettings",
    "QueueSettings",
    "RedisSettings",
    "ReplicaSettings",
    "RouterSettings",
    "Settings",
    "SimSettings",
    "SpeculativeSettings",
    "VllmSettings",
    "load_settings",
]
