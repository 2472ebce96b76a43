"""Client of the part of Ray Serve's REST API that deploys and scales. Needs no Ray in this process."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import BootstrapError, plain_reason
from cluster.ray_serve.config import DEPLOYMENT, app_name
from cluster.ray_serve.inside import INSIDE

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class AppStatus:
    """Status of one application."""

    status: str
    """Serve's own word: DEPLOYING, RUNNING, DEPLOY_FAILED, UNHEALTHY, DELETING, NOT_STARTED."""
    message: str
    running: int
    """Number of replicas that run."""
    target: int
    replicas: tuple[str, ...] | None = None
    """Serve's ids of all replicas, those that start or stop included; None where Serve does not give them."""
    digest: str = ""
    """Digest of the settings that it was last deployed with; empty where Serve does not give it."""
    deployed: int = 0
    """Number of replicas that it was last deployed with; 0 where Serve does not give it. `target` is newer where the
    number was set since.
    """


class ServeApi:
    """Client of the dashboard of a Ray cluster."""

    def __init__(self, address: str, token_file: Path | None, timeout_s: float = TIMEOUT_S) -> None:
        """Prepare a client. `address` is http://host:port; `token_file` contains the bearer token that Ray requires
        since 2.60. The process may take `timeout_s` seconds longer to end, because a call on its way can't be
        cancelled.
        """
        self._address = address.rstrip("/")
        self._token_file = token_file
        self._timeout_s = timeout_s

    async def deploy(self, config: dict[str, Any]) -> None:
        """Make the cluster run exactly these applications; return once Serve has accepted the config.

        Raises:
            BootstrapError: Serve refused it.
        """
        await self._call("PUT", "/api/serve/applications/", config)

    async def status(self) -> dict[str, AppStatus]:
        """Return the state of every application by name.

        Raises:
            BootstrapError: the dashboard does not answer, or not in the known form.
        """
        reply = await self._call("GET", "/api/serve/applications/", None)
        try:
            # Ray has the key even without applications. A reply without it must not count as a Ray without
            # applications: a deployment ends the applications that it does not name.
            return {name: _app_status(app) for name, app in reply["applications"].items()}
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise BootstrapError("ray serve", f"its dashboard lists no applications: {str(reply)[:300]}") from error

    async def gpus(self) -> int:
        """Return the number of GPUs of the whole Ray cluster.

        Raises:
            BootstrapError: the dashboard does not answer, or not in the known form.
        """
        reply = await self._call("GET", "/api/v0/nodes", None)
        try:
            nodes = reply["data"]["result"]["result"]
            return sum(int(each["resources_total"].get("GPU", 0)) for each in nodes if each["state"] == "ALIVE")
        except (KeyError, TypeError, AttributeError) as error:
            raise BootstrapError("ray", f"its dashboard lists no nodes: {str(reply)[:300]}") from error

    async def scale(self, pool: str, replicas: int) -> None:
        """Set a pool's number of replicas; running replicas are not restarted.

        Raises:
            BootstrapError: Serve refused it.
        """
        path = f"/api/v1/applications/{app_name(pool)}/deployments/{DEPLOYMENT}/scale"
        await self._call("POST", path, {"target_num_replicas": replicas})

    async def _call(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        return await asyncio.to_thread(self._request, method, path, body)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", **self._authorization()}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(  # noqa: S310 - the address is an operator's setting
            self._address + path, data=data, headers=headers, method=method
        )
        try:
            with INSIDE.open(request, timeout=self._timeout_s) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:
            with error:
                raise BootstrapError("ray serve", f"{method} {path}: {error.code}: {_detail(error)}") from error
        except (OSError, http.client.HTTPException) as error:
            # HTTPException: the dashboard ended in the middle of its answer.
            raise BootstrapError("ray serve", f"{method} {path}: {error}") from error
        try:
            parsed = json.loads(text) if text else {}
        except ValueError:
            # Some replies are plain text.
            parsed = {}
        return parsed if isinstance(parsed, dict) else {}

    def _authorization(self) -> dict[str, str]:
        """Return the header with the token, which is read anew because it may have been replaced."""
        try:
            token = self._token_file.read_text(encoding="ascii").strip() if self._token_file is not None else ""
        except FileNotFoundError:
            # This Ray uses no tokens.
            return {}
        except (OSError, ValueError) as error:
            raise BootstrapError(
                "ray serve", f"{self._token_file} must hold its token, and can't be read: {plain_reason(error)}"
            ) from error
        if not token.isprintable():
            raise BootstrapError("ray serve", f"{self._token_file} must hold its token in one line")
        return {"Authorization": f"Bearer {token}"} if token else {}


def default_token_file() -> Path:
    """Return the file in which Ray keeps its token. Without a known home folder it does not exist."""
    return Path(os.path.expanduser("~/.ray/auth_token"))


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return error.read().decode(errors="replace")[:500]
    except (OSError, http.client.HTTPException):
        return str(error.reason)


def _app_status(app: dict[str, Any]) -> AppStatus:
    deployment = app.get("deployments", {}).get(DEPLOYMENT, {})
    replicas = deployment.get("replicas", [])
    ids = tuple(replica.get("replica_id") for replica in replicas)
    message = app.get("message", "") or deployment.get("message", "")
    # Serve has none while the application ends, and at first.
    config = app.get("deployed_app_config") or {}
    numbers = [each.get("num_replicas") for each in config.get("deployments", []) if each.get("name") == DEPLOYMENT]
    return AppStatus(
        status=str(app.get("status", "")),
        message=str(message),
        running=sum(1 for replica in replicas if replica.get("state") == "RUNNING"),
        target=int(deployment.get("target_num_replicas") or 0),
        replicas=None if None in ids else ids,
        digest=str(config.get("args", {}).get("digest", "")),
        deployed=int((numbers or [None])[0] or 0),
    )
