"""Which changes of a RayService KubeRay takes into its Ray cluster, and which make a second one beside it.

Where a change is taken in place, the whole description of the cluster is replaced, the numbers of groups that were
there before too; a change of these numbers alone is not looked at. Releases before KubeRay 1.7 take appended groups in
place, too; the oldest of them count a changed least or largest number as a change.
"""

from __future__ import annotations

import copy
import enum
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tests.k8s.charts import Object

MUTED = ("replicas", "minReplicas", "maxReplicas")
"""Fields of a worker group that count for no change (generateHashWithoutReplicasAndWorkersToDelete)."""


class Change(enum.Enum):
    """What becomes of a changed RayService."""

    NOTHING = "nothing"
    """The cluster is the wanted one. Its numbers stay, whatever the RayService says now."""
    IN_PLACE = "in place"
    """The cluster gets the new description."""
    SECOND = "second"
    """Another cluster is made, and takes over when it is ready."""
    IGNORED = "ignored"
    """The strategy forbids a second cluster."""


@dataclass
class RayCluster:
    """A RayCluster that serves a RayService."""

    spec: dict[str, Any]
    digest: str
    groups: int

    def least(self, group: str) -> int:
        """Return the pods that a group always keeps."""
        return int(self._group(group)["minReplicas"])

    def asked(self, group: str) -> int:
        """Return the pods that a group was given last."""
        return int(self._group(group)["replicas"])

    def _group(self, name: str) -> dict[str, Any]:
        (found,) = [each for each in self.spec["workerGroupSpecs"] if each["groupName"] == name]
        return found


class RayClusters:
    """RayClusters of one RayService, and what its changes make of them."""

    def __init__(self, service: Object) -> None:
        """`service`: the RayService as it was made; its cluster is ready."""
        self.active = _made(service)
        self.made = 1
        """Clusters so far."""

    def take(self, service: Object) -> Change:
        """Take a changed RayService. A second cluster is ready at once.

        Source: controllers/ray/rayservice_controller.go, reconcileRayCluster, shouldPrepareNewCluster,
        shouldUpdateCluster, isClusterSpecHashEqual, modifyRayCluster.
        """
        wanted = service["spec"]["rayClusterConfig"]
        if self.active.digest == digest(wanted):
            return Change.NOTHING
        groups = wanted["workerGroupSpecs"]
        if len(groups) >= self.active.groups:
            before = {**wanted, "workerGroupSpecs": groups[: self.active.groups]}
            if self.active.digest == digest(before):
                self.active = _made(service)
                return Change.IN_PLACE
        # isZeroDowntimeUpgradeEnabled
        if service["spec"].get("upgradeStrategy", {}).get("type") == "None":
            return Change.IGNORED
        self.active, self.made = _made(service), self.made + 1
        return Change.SECOND


def _made(service: Object) -> RayCluster:
    """Source: constructRayClusterForRayService."""
    spec = copy.deepcopy(service["spec"]["rayClusterConfig"])
    return RayCluster(spec, digest(spec), len(spec["workerGroupSpecs"]))


def digest(cluster: dict[str, Any]) -> str:
    """Return the digest by which clusters are compared.

    Source: generateHashWithoutReplicasAndWorkersToDelete; utils/util.go, GenerateJsonHash.
    """
    muted = copy.deepcopy(cluster)
    for group in muted["workerGroupSpecs"]:
        for name in MUTED:
            group.pop(name, None)
        group.get("scaleStrategy", {}).pop("workersToDelete", None)
    return hashlib.sha1(json.dumps(muted, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
