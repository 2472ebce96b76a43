"""Those who write to objects of a release besides Helm, each as it does in a cluster."""

from __future__ import annotations

from typing import Any

from tests.k8s.charts import Object
from tests.k8s.kuberay import writes
from tests.k8s.ownership.server import Server

CONTROLLERS = "kube-controller-manager"


def kuberay(server: Server) -> None:
    """Add the finalizer to each RayService with an Update of the whole object, and report a status."""
    for service in _of_kind(server, "RayService"):
        server.update(writes.with_finalizer(service), writes.MANAGER)
        named = server.get("RayService", service["metadata"]["name"])
        server.update(named | {"status": writes.status(service)}, writes.MANAGER, "status")


def deployments(server: Server) -> None:
    """Number the revision of each Deployment (pkg/controller/deployment/sync.go)."""
    for each in _of_kind(server, "Deployment"):
        notes = each["metadata"].setdefault("annotations", {})
        notes["deployment.kubernetes.io/revision"] = str(int(notes.get("deployment.kubernetes.io/revision", "0")) + 1)
        server.update(each, CONTROLLERS)
        status = {"observedGeneration": 1, "replicas": each["spec"].get("replicas", 1)}
        server.update(server.get(each["kind"], each["metadata"]["name"]) | {"status": status}, CONTROLLERS, "status")


def horizontal_autoscaler(server: Server, replicas: int = 7) -> None:
    """Set the number of pods of each target by its subresource scale (pkg/controller/podautoscaler/horizontal.go)."""
    for scaler in _of_kind(server, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        scale(server, target["kind"], target["name"], replicas, CONTROLLERS)


def scale(server: Server, kind: str, name: str, replicas: int, manager: str = "kubectl") -> None:
    """Do what `kubectl scale` does."""
    each = server.get(kind, name)
    each["spec"]["replicas"] = replicas
    server.update(each, manager, "scale")


def restart(server: Server, kind: str, name: str, when: str) -> None:
    """Do what `kubectl rollout restart` does."""
    each = server.get(kind, name)
    notes = each["spec"]["template"].setdefault("metadata", {}).setdefault("annotations", {})
    notes["kubectl.kubernetes.io/restartedAt"] = when
    server.update(each, "kubectl-rollout")


def cert_manager(server: Server) -> None:
    """Report that certificates are issued (pkg/controller/certificates)."""
    for each in _of_kind(server, "Certificate"):
        each["status"] = {"conditions": [{"type": "Ready", "status": "True"}], "revision": 1}
        server.update(each, "cert-manager-certificates-readiness", "status")


def everybody(server: Server) -> None:
    """Let all of them write once."""
    for write in (kuberay, deployments, horizontal_autoscaler, cert_manager):
        write(server)


def _of_kind(server: Server, kind: str) -> list[Any]:
    found: list[Object] = [server.get(*key) for key in list(server.kept) if key[0] == kind]
    return found
