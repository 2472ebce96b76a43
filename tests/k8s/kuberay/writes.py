"""What KubeRay writes to the API server: its finalizer, with the whole RayService as Go has it, and statuses.

A program in Go reads an object into structures and writes the structures. Empty fields whose tag says `omitempty` are
left out, structures and pointers that are there are written even where they are empty, and quantities get one form.
"""

from __future__ import annotations

import copy
from decimal import Decimal
from typing import Any

from tests.k8s import crds
from tests.k8s.charts import Object

MANAGER = "kuberay-operator"
"""Its field manager (main.go): the name of the program."""
FINALIZER = "ray.io/rayservice"
"""What it adds. Tests need one, not its name."""
KEPT_EMPTY = frozenset({"emptyDir", "resources", "securityContext", "scaleStrategy", "rayStartParams", "metadata"})
"""Fields that are written even where they are empty: pointers, and structures."""
PLAIN_FLAGS = frozenset({"readOnly", "hostNetwork", "hostPID", "hostIPC", "stdin", "tty"})
"""Fields that are left out where they are false: flags that are no pointers (k8s.io/api/core/v1/types.go)."""
QUANTITY = "KMGTPE"
"""Part of the pattern that controller-gen gives to quantities and to nothing else."""
DECIMAL = ("", "k", "M", "G", "T", "P", "E")
BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def with_finalizer(service: Object) -> Object:
    """Return what the operator writes when it first sees a RayService.

    Source: controllers/ray/rayservice_controller.go, Reconcile (the finalizer, and `Update` of the whole object).
    """
    written = written_back(service)
    finalizers = written["metadata"].setdefault("finalizers", [])
    if FINALIZER not in finalizers:
        finalizers.append(FINALIZER)
    return written


def written_back(service: Object) -> Object:
    """Return a RayService as the operator's types write it.

    Sources: apis/ray/v1/rayservice_types.go, RayServiceSpec; apis/ray/v1/raycluster_types.go, RayClusterSpec,
    HeadGroupSpec, WorkerGroupSpec (`scaleStrategy` is a structure); k8s.io/api/core/v1/types.go, Container
    (`resources` is one too), PodTemplateSpec and PersistentVolumeClaimTemplate (`metadata`);
    k8s.io/apimachinery/pkg/api/resource, Quantity.String.
    """
    written = copy.deepcopy(service)
    cluster = written["spec"]["rayClusterConfig"]
    for group in cluster["workerGroupSpecs"]:
        group.setdefault("scaleStrategy", {})
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        template = group["template"]
        template.setdefault("metadata", {})
        for volume in template["spec"].get("volumes", []):
            if claim := volume.get("ephemeral", {}).get("volumeClaimTemplate"):
                claim.setdefault("metadata", {})
        for container in (*template["spec"].get("initContainers", []), *template["spec"]["containers"]):
            container.setdefault("resources", {})
    schema = crds.schemas()[service["apiVersion"], service["kind"]]
    written["spec"] = _written(written["spec"], schema["properties"]["spec"])
    return written


def _written(value: Any, schema: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
        other = rest if isinstance(rest, dict) else {}
        return {
            name: _written(inner, fields.get(name, other))
            for name, inner in value.items()
            if not _left_out(name, inner, known=name in fields)
        }
    if isinstance(value, list):
        return [_written(item, schema.get("items", {})) for item in value]
    return canonical(value) if QUANTITY in schema.get("pattern", "") else value


def _left_out(name: str, value: Any, *, known: bool) -> bool:
    if value is None or not known:
        # A map's values are written whatever they are.
        return value is None
    if value == {} and name in KEPT_EMPTY:
        return False
    return value in ("", [], {}) or (value is False and name in PLAIN_FLAGS)


def canonical(quantity: str | float) -> str:
    """Return a quantity as Kubernetes' own libraries write it."""
    text = str(quantity)
    number = text.rstrip("kKmMGTPEi")
    unit = text.removeprefix(number)
    if unit in BINARY[1:]:
        amount, step, units = Decimal(number) * 1024 ** BINARY.index(unit), 1024, BINARY
    else:
        amount = Decimal(number) * (Decimal("0.001") if unit == "m" else 1000 ** DECIMAL.index(unit))
        step, units = 1000, DECIMAL
    if amount != int(amount):
        return f"{int(amount * 1000)}m"
    whole, at = int(amount), 0
    while whole and whole % step == 0:
        whole, at = whole // step, at + 1
    return f"{whole}{units[at]}"


def cluster_name(service: Object, suffix: str = "x7k2p") -> str:
    """Return the name of a RayCluster that serves a RayService.

    Source: controllers/ray/utils/util.go, GenerateRayClusterName: the name and five random letters.
    """
    return f"{service['metadata']['name']}-{suffix}"


def status(service: Object) -> dict[str, Any]:
    """Return the status of a RayService that is ready.

    Source: controllers/ray/rayservice_controller.go, calculateStatus.
    """
    return {
        "activeServiceStatus": {"rayClusterName": cluster_name(service)},
        "serviceStatus": "Running",
        "conditions": [{"type": "Ready", "status": "True", "reason": "NonZeroServeEndpoints"}],
    }
