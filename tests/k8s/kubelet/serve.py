"""The part of Ray Serve that an autoscaler talks to: its REST API with the bearer token, and replicas that follow.

It stands on a loopback address of its own, which the kubelet gives the head's Service, as KubeRay would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.k8s.charts import of_kind, one
from tests.k8s.kubelet.cluster import Kubelet
from tests.k8s.kubelet.pod import Pod
from tests.k8s.kuberay.pods import DASHBOARD, service_address
from tests.k8s.view import serve_config

APPLICATIONS = "/api/serve/applications/"


class Serve:
    """Keeps the one pool's replicas at a number: who still starts goes first, then the newest."""

    def __init__(self, kubelet: Kubelet) -> None:
        service = one(kubelet.objects, "RayService")
        (app,) = serve_config(service)["applications"]
        self.name: str = app["name"]
        self.target: int = app["deployments"][0]["num_replicas"]
        self.refused = 0
        """Calls without the token."""
        self._kubelet = kubelet
        self._loop = asyncio.get_running_loop()
        secret = service["spec"]["rayClusterConfig"]["authOptions"]["secretName"]
        self._token = kubelet.secret(secret)["auth_token"]
        self.address = kubelet.add_service(service_address(service), DASHBOARD)

    @property
    def replicas(self) -> list[Pod]:
        """Those that are not on their way out, the oldest first."""
        return self._kubelet.pods.setdefault("replicas", [])

    def reconcile(self) -> None:
        """Start and end replicas."""
        while len(self.replicas) < self.target:
            self._kubelet.add_replica()
        while len(self.replicas) > self.target:
            starting = [pod for pod in self.replicas if not pod.ready]
            self._kubelet.remove((starting or self.replicas)[-1])

    def scale(self, target: int) -> None:
        """Take a number; called on another thread."""
        self.target = target
        self._loop.call_soon_threadsafe(self.reconcile)

    def status(self) -> dict[str, Any]:
        """Answer as Serve does; called on another thread."""
        states = [
            {"state": "RUNNING" if pod.ready else "STARTING", "replica_id": pod.spec.containers()[0]["args"][2]}
            for pod in list(self.replicas)
        ]
        deployment = {"target_num_replicas": self.target, "replicas": states}
        return {"applications": {self.name: {"status": "RUNNING", "deployments": {"replica": deployment}}}}

    def knows(self, authorization: str | None) -> bool:
        """Say whether a call has the token."""
        good = authorization == f"Bearer {self._token}"
        self.refused += not good
        return good


def _handler(serve: Serve) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(serve.status() if self.path == APPLICATIONS else None)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != f"/api/v1/applications/{serve.name}/deployments/replica/scale":
                self._answer(None)
            elif serve.knows(self.headers["Authorization"]):
                serve.scale(body["target_num_replicas"])
                self._send(200, {})
            else:
                self._send(401, {})

        def _answer(self, body: dict[str, Any] | None) -> None:
            if not serve.knows(self.headers["Authorization"]):
                self._send(401, {})
            else:
                self._send(404 if body is None else 200, body or {})

        def _send(self, status: int, body: dict[str, Any]) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@contextlib.asynccontextmanager
async def running_serve(kubelet: Kubelet) -> AsyncIterator[Serve]:
    """Run it, with the replicas that the Serve config names."""
    serve = Serve(kubelet)
    server = ThreadingHTTPServer((serve.address, DASHBOARD), _handler(serve))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    serve.reconcile()
    try:
        yield serve
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()


@contextlib.asynccontextmanager
async def running_autoscalers(kubelet: Kubelet) -> AsyncIterator[Serve]:
    """Run the rendered Deployment of autoscalers, ready, beside it."""
    async with running_serve(kubelet) as serve:
        (deployment,) = of_kind(kubelet.objects, "Deployment", "-autoscaler")
        await kubelet.until_ready(serve.replicas)
        pods = await kubelet.apply("Deployment", "-autoscaler")
        try:
            yield serve
        finally:
            await asyncio.gather(*(kubelet.remove(pod) for pod in list(pods)))
            assert not kubelet.pods[deployment["metadata"]["name"]]
