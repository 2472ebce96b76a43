"""`helm test` passes against routers as they are set up, and is not there where it could not."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.cli.main import main
from cluster.errors import UnauthenticatedError
from tests.k8s.charts import Object, of_kind, render_values
from tests.penstock.client.fake_router import FakeRouter, serving
from tests.support.certificates import Authority, Pair, dns

OWN = {"router.tls.enabled": True, "router.tls.existingSecret": "mine", "auth.anonymous": True}
MUTUAL = {**OWN, "router.tls.clientCertificates": True, "test.clientCertificateSecret": "test-client"}
SERVICE = "penstock-router"


def hook_pods(values: dict[str, Any]) -> list[Object]:
    return of_kind(render_values("defaults", values), "Pod")


def mounted(pod: Object, secrets: dict[str, dict[str, bytes]], folder: Path) -> dict[str, Path]:
    """Lay the pod's files out as the kubelet does, which starts no pod that lacks one; returns folders by mount."""
    volumes = {each["name"]: each["secret"] for each in pod["spec"].get("volumes", [])}
    places = {}
    for mount in pod["spec"]["containers"][0].get("volumeMounts", []):
        source = volumes[mount["name"]]
        place = places[mount["mountPath"]] = folder / mount["name"]
        place.mkdir()
        for item in source["items"]:
            (place / item["path"]).write_bytes(secrets[source["secretName"]][item["key"]])
    return places


def secret(pair: Pair) -> dict[str, bytes]:
    return {"tls.crt": pair.certificate, "tls.key": pair.key}


@pytest.mark.parametrize(
    ("values", "name"),
    [(OWN, SERVICE), ({**OWN, "test.serverName": "llm.example.org"}, "llm.example.org"), (MUTUAL, SERVICE)],
    ids=["certificate-alone", "another-name", "client-certificates"],
)
async def test_the_pod_gets_through_the_routers_tls(tmp_path: Path, values: dict[str, Any], name: str) -> None:
    """Also where the secret has no ca.crt, which only clients' certificates need."""
    (pod,) = await asyncio.to_thread(hook_pods, values)
    servers, clients = Authority("servers"), Authority("clients")
    server = servers.issue("router", dns(name))
    secrets = {"mine": secret(server), "test-client": secret(clients.issue("test"))}
    places = await asyncio.to_thread(mounted, pod, secrets, tmp_path)

    trusted = (clients.pem, True) if values is MUTUAL else (None, False)
    credentials = grpc.ssl_server_credentials([(server.key, server.certificate)], *trusted)
    router = FakeRouter()
    async with serving(router, credentials=credentials) as port:
        arguments = [argument(text, places, port) for text in pod["spec"]["containers"][0]["args"]]
        if not any(text.startswith("--tls-server-name=") for text in arguments):
            # Its name is the Service's, which resolves only in a cluster.
            arguments.insert(0, f"--tls-server-name={SERVICE}")
        assert 0 == await asyncio.to_thread(main, ["generate", *arguments])
    assert router.requests


def argument(text: str, places: dict[str, Path], port: int) -> str:
    """Translate an argument: the Service's name, and files."""
    text = re.sub(rf"^--target={SERVICE}:50051$", f"--target=127.0.0.1:{port}", text)
    for mount, place in places.items():
        text = text.replace(f"={mount}/", f"={place}/")
    return text


@pytest.mark.parametrize(
    ("values", "there"),
    [
        ({}, False),
        ({"secrets.generate": True}, True),
        ({"test.existingSecret": "key"}, True),
        # Nobody makes a first key for keys that exist.
        ({"secrets.generate": True, "auth.existingSecret": "my-keys"}, False),
        (OWN, True),
        (MUTUAL, True),
        ({**MUTUAL, "test.clientCertificateSecret": ""}, False),
        ({**MUTUAL, "test.enabled": False}, False),
    ],
)
def test_the_pod_is_there_only_with_all_that_it_needs(values: dict[str, Any], there: bool) -> None:
    assert there == bool(hook_pods({"secrets.generateOffline": True, **values}))


@pytest.mark.parametrize("values", [{"secrets.generate": True}, {"test.existingSecret": "typo"}])
async def test_a_key_that_was_deleted_fails_the_test_at_once(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kubelet starts a pod without an optional secret; without another one it waits for it."""
    (pod,) = await asyncio.to_thread(hook_pods, {"secrets.generateOffline": True, **values})
    (container,) = pod["spec"]["containers"]
    references = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"]}
    assert {"PENSTOCK_API_KEY": True} == {name: ref.get("optional", False) for name, ref in references.items()}

    monkeypatch.delenv("PENSTOCK_API_KEY", raising=False)
    router = FakeRouter()
    router.failures.extend([UnauthenticatedError("credentials are missing")] * 2)
    async with serving(router) as port:
        arguments = [argument(text, {}, port) for text in container["args"]]
        assert 1 == await asyncio.to_thread(main, ["generate", *arguments])
    assert "credentials are missing" in capsys.readouterr().err
