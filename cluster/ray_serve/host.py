"""The part of Ray Serve's REST API that we use, served from the process that hosts a local Ray. Ray's own dashboard has
it too, and takes eight more processes and 0.4 GiB for it.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from cluster.ray_serve.config import DEPLOYMENT

APPLICATIONS = "/api/serve/applications/"
_SCALE = "/api/v1/applications/"


class ServeControl(Protocol):
    """Serve's controller."""

    def details(self) -> dict[str, Any]:
        """Return the state of every application."""
        ...

    def deploy(self, config: dict[str, Any]) -> None:
        """Make the cluster run exactly these applications.

        Raises:
            ValueError: the config has a wrong form.
        """
        ...

    def scale(self, application: str, deployment: str, replicas: int) -> None:
        """Set a deployment's number of replicas."""
        ...


class RayServeControl:
    """Serve's controller in this process' Ray."""

    def __init__(self) -> None:
        from ray import serve
        from ray.serve.context import _get_global_client

        serve.start(proxy_location="Disabled")
        self._client = _get_global_client()

    def details(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.get_serve_details()
        return found

    def deploy(self, config: dict[str, Any]) -> None:
        from ray.serve.schema import ServeDeploySchema

        self._client.deploy_apps(ServeDeploySchema.model_validate(config))

    def scale(self, application: str, deployment: str, replicas: int) -> None:
        import ray
        from ray.serve._private.common import DeploymentID

        target = DeploymentID(name=deployment, app_name=application)
        ray.get(self._client._controller.update_deployment_replicas.remote(target, replicas))


@contextmanager
def serving(control: ServeControl, token: str) -> Iterator[str]:
    """Serve the API on a free port of 127.0.0.1 while the block runs; give its address, http://host:port.

    Args:
        control: the controller that answers.
        token: bearer token that every call must have.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(control, token))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="serve-api", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _handler(control: ServeControl, token: str) -> type[BaseHTTPRequestHandler]:
    expected = f"Bearer {token}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(APPLICATIONS, lambda: control.details())

        def do_PUT(self) -> None:
            self._answer(APPLICATIONS, lambda: control.deploy(self._body()))

        def do_POST(self) -> None:
            name, _, deployment = self.path.removeprefix(_SCALE).removesuffix("/scale").partition("/deployments/")
            path = f"{_SCALE}{name}/deployments/{DEPLOYMENT}/scale"
            self._answer(path, lambda: control.scale(name, deployment, int(self._body()["target_num_replicas"])))

        def _body(self) -> dict[str, Any]:
            read: dict[str, Any] = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            return read

        def _answer(self, path: str, work: Callable[[], dict[str, Any] | None]) -> None:
            if not hmac.compare_digest(self.headers.get("Authorization", ""), expected):
                self._send(401, {"error": "the bearer token is missing or wrong"})
            elif self.path != path:
                self._send(404, {"error": f"there is no {self.path}"})
            else:
                try:
                    self._send(200, work() or {})
                except (KeyError, ValueError) as error:
                    self._send(400, {"error": str(error)})
                except Exception as error:  # noqa: BLE001 - the caller tries again
                    self._send(503, {"error": str(error)})

        def _send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Log nothing: the callers do."""

    return Handler
