"""Signed announcement of a replica. By it a router connects to and trusts only replicas of its own cluster."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any

import msgpack

from cluster.models import ModelInfo
from cluster.trust.secret import ClusterSecret
from penstock.models import Capabilities, ModelTask, PoolingFeatures

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_PURPOSE = "registry/1"


@dataclass(frozen=True, slots=True)
class Announcement:
    """Part of a replica's record that does not change while it lives."""

    replica_id: str
    pool: str
    address: str
    """Address of its ReplicaService, host:port."""
    group_id: str
    model: ModelInfo
    tensor_parallel_size: int
    hardware: str
    metrics_port: int
    price_per_gpu_hour: float
    model_name: str = ""
    """Model of the settings; empty from a replica of the last release."""
    gpus: int = 0
    """Number of accelerators; 0 from a replica of the last release."""
    ray_cluster: str = ""
    """Name of the RayCluster that it runs in; empty where KubeRay made none, and from a replica of the last release."""
    ray_started_at: float = 0.0
    """Start of that cluster's Ray session, seconds since the epoch by its head's clock."""

    @property
    def accelerators(self) -> int:
        """Number of accelerators, also of a replica of the last release, which has one machine."""
        return self.gpus or self.tensor_parallel_size

    def seal(self, secret: ClusterSecret) -> bytes:
        """Return the signed record."""
        return secret.seal(_PURPOSE, bytes(msgpack.packb(asdict(self))))

    @classmethod
    def open(cls, record: bytes, secret: ClusterSecret) -> Announcement | None:
        """Read a record; None when it is not signed with this cluster's secret or cannot be read."""
        payload = secret.open(_PURPOSE, record)
        if payload is None:
            return None
        try:
            fields: dict[str, Any] = msgpack.unpackb(payload)
            return cls(**{**_known(cls, fields), "model": model_from_fields(fields["model"])})
        except (ValueError, TypeError, KeyError):
            return None


def replica_name(pool: str, serve_id: str) -> str:
    """Return the name of a replica that Ray Serve knows by this id within its deployment."""
    return f"{pool}-{serve_id}"


def model_from_fields(fields: dict[str, Any]) -> ModelInfo:
    """Rebuild a ModelInfo from its `dataclasses.asdict`, also after JSON or msgpack, and from a later release.

    Raises:
        TypeError, KeyError: these are not the fields of a ModelInfo.
    """
    return ModelInfo(
        **{
            **_known(ModelInfo, fields),
            "capabilities": Capabilities(**_known(Capabilities, fields["capabilities"])),
            "lora_adapters": tuple(fields["lora_adapters"]),
            # Replicas of the last release only generate.
            "task": ModelTask(fields.get("task", ModelTask.GENERATE)),
            "pooling": _pooling(fields.get("pooling", {})),
            "image_ids": tuple(fields.get("image_ids", ())),
        }
    )


def _pooling(fields: dict[str, Any]) -> PoolingFeatures:
    lists: dict[str, Any] = {name: tuple(fields[name]) for name in ("dimensions", "labels") if name in fields}
    return PoolingFeatures(**{**_known(PoolingFeatures, fields), **lists})


def _known(kind: type[DataclassInstance], found: dict[str, Any]) -> dict[str, Any]:
    # A later release may have more fields.
    return {field.name: found[field.name] for field in dataclass_fields(kind) if field.name in found}
