"""What a replica announces of itself, signed, so that a router dials and trusts only replicas of its own cluster."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgpack

from cluster.models import Capabilities, ModelInfo
from cluster.secret import ClusterSecret

_PURPOSE = "registry/1"


@dataclass(frozen=True, slots=True)
class Announcement:
    """Is the part of a replica's record that does not change while it lives."""

    replica_id: str
    pool: str
    address: str
    """host:port of its ReplicaService."""
    group_id: str
    model: ModelInfo
    tensor_parallel_size: int
    hardware: str
    metrics_port: int
    price_per_gpu_hour: float

    def seal(self, secret: ClusterSecret) -> bytes:
        """Write and sign the record."""
        return secret.seal(_PURPOSE, bytes(msgpack.packb(asdict(self))))

    @classmethod
    def open(cls, record: bytes, secret: ClusterSecret) -> Announcement | None:
        """Read a record; None when it is not signed with this cluster's secret."""
        payload = secret.open(_PURPOSE, record)
        if payload is None:
            return None
        fields: dict[str, Any] = msgpack.unpackb(payload)
        return cls(**{**fields, "model": model_from_fields(fields["model"])})


def replica_name(pool: str, serve_id: str) -> str:
    """Name the replica that Ray Serve knows by this id within its deployment."""
    return f"{pool}-{serve_id}"


def model_from_fields(fields: dict[str, Any]) -> ModelInfo:
    """Rebuild a ModelInfo from `dataclasses.asdict` of one, also after JSON or msgpack."""
    return ModelInfo(
        **{
            **fields,
            "capabilities": Capabilities(**fields["capabilities"]),
            "lora_adapters": tuple(fields["lora_adapters"]),
        }
    )
