"""One typed tree of settings, from defaults, a TOML file, the environment and flags; later sources win."""

from cluster.addresses import is_loopback
from cluster.settings.access import Access, access_of
from cluster.settings.aliases import AliasSettings, AliasTarget
from cluster.settings.auth import AuthSettings, IssuerSettings
from cluster.settings.control.autoscale import AutoscaleSettings
from cluster.settings.load import load_settings
from cluster.settings.pools import (
    ClassSloSettings,
    ControlSettings,
    EngineKind,
    PoolSettings,
    SimSettings,
    SpeculativeSettings,
    StructuredOutputSettings,
    TaskKind,
    VllmSettings,
)
from cluster.settings.queue import QueueSettings, QuotaSettings, TenantSettings
from cluster.settings.replica import ReplicaSettings, ReplicaTlsSettings
from cluster.settings.router import (
    AffinitySettings,
    HttpSettings,
    JobsSettings,
    LimitSettings,
    MergingSettings,
    RouterSettings,
    RouterTlsSettings,
)
from cluster.settings.telemetry import TelemetrySettings
from cluster.settings.tree import AutoscalerSettings, RedisSettings, Settings

__all__ = [
    "Access",
    "AffinitySettings",
    "AliasSettings",
    "AliasTarget",
    "AuthSettings",
    "AutoscaleSettings",
    "AutoscalerSettings",
    "ClassSloSettings",
    "ControlSettings",
    "EngineKind",
    "HttpSettings",
    "IssuerSettings",
    "JobsSettings",
    "LimitSettings",
    "MergingSettings",
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
    "StructuredOutputSettings",
    "TaskKind",
    "TelemetrySettings",
    "TenantSettings",
    "VllmSettings",
    "access_of",
    "is_loopback",
    "load_settings",
]
