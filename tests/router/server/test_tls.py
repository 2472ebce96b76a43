"""TLS on the public port: certificates change under open streams, and client certificates say who calls."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from cluster.errors import SettingsError
from cluster.settings import load_settings
from cluster.trust import tls as tls_files
from penstock.client import (
    AsyncClient,
    PermissionDeniedError,
    RetryPolicy,
    Tls,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.v1 import admin_pb2, inference_pb2_grpc
from penstock.v1 import inference_pb2 as api
from router.build import build_router
from router.identity.new_key import KeyPlan, add_key
from router.stores import QueueFactory, redis_factory
from tests.support.certificates import LOOPBACK, Authority, Pair, uri
from tests.support.stack import SECRET, collect, running_stack, stream_request

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture(autouse=True)
def look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each connection look at the files, not only the first one of a second."""
    monkeypatch.setattr(tls_files, "LOOK_S", 0.0)


def channel(address: str, authority: Authority, client: Pair | None = None) -> grpc.aio.Channel:
    """Open a connection of its own."""
    pair = (client.key, client.certificate) if client is not None else (None, None)
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority.pem, *pair), options=options)


def dialer(authority: Authority, client: Pair | None = None) -> Callable[[str], grpc.aio.Channel]:
    return lambda address: channel(address, authority, client)


def shown_by(port: int) -> str:
    """Return the common name in the certificate that a port shows to newcomers."""
    pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=10)
    [name] = x509.load_pem_x509_certificate(pem.encode()).subject
    return str(name.value)


def tls(folder: Path, pair: Pair, **others: str) -> dict[str, Any]:
    certificate, key = pair.write(folder, "router")
    return {"router": {"tls": {"certificate_file": certificate, "private_key_file": key, **others}}}


async def test_certificates_change_under_a_running_server(tmp_path: Path) -> None:
    """Newcomers see the new certificate; a stream that is open, and its connection, live on."""
    old, new = Authority("old"), Authority("new")
    sections = tls(tmp_path, old.issue("first", *LOOPBACK))
    async with running_stack(tmp_path, sections=sections, sim={"base_ms": 2.0}, dial=dialer(old)) as stack:
        port = stack.routers[0].port
        assert "first" == await asyncio.to_thread(shown_by, port)
        call = stack.inference().StreamGenerate(stream_request(max_tokens=600, ignore_eos=True))
        while not (await call.read()).HasField("delta"):
            pass

        new.issue("second", *LOOPBACK).write(tmp_path, "router")
        assert "second" == await asyncio.to_thread(shown_by, port)
        async with channel(f"127.0.0.1:{port}", new) as fresh:
            stub = inference_pb2_grpc.InferenceServiceStub(fresh)
            assert 1 == len((await stub.ListModels(api.ListModelsRequest())).models)
        async with channel(f"127.0.0.1:{port}", old) as stale:
            stub = inference_pb2_grpc.InferenceServiceStub(stale)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ListModels(api.ListModelsRequest())
            assert grpc.StatusCode.UNAVAILABLE is caught.value.code()

        assert 600 == (await collect(call))[-1].finished.usage.output_tokens
        # Also new calls of the old connection.
        assert 1 == len((await stack.inference().ListModels(api.ListModelsRequest())).models)
        metrics = stack.routers[0]._metrics.registry
        facts = {"file": "router.tls", "outcome": "good"}
        assert 1 == metrics.get_sample_value("penstock_router_file_reloads_total", facts)


async def test_a_half_written_rotation_leaves_the_old_certificate(tmp_path: Path) -> None:
    authority = Authority()
    sections = tls(tmp_path, authority.issue("first", *LOOPBACK))
    async with running_stack(tmp_path, replicas=0, sections=sections, dial=dialer(authority)) as stack:
        port = stack.routers[0].port
        second = authority.issue("second", *LOOPBACK)
        await asyncio.to_thread((tmp_path / "router.key").write_bytes, second.key)
        assert "first" == await asyncio.to_thread(shown_by, port)
        await asyncio.to_thread((tmp_path / "router.crt").write_bytes, second.certificate)
        assert "second" == await asyncio.to_thread(shown_by, port)


async def test_a_storm_of_connections_does_not_look_at_the_files_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_files, "LOOK_S", 1e9)
    authority = Authority()
    sections = tls(tmp_path, authority.issue("first", *LOOPBACK))
    sections["router"]["http"] = {"port": 0}
    async with running_stack(tmp_path, replicas=0, sections=sections, dial=dialer(authority)) as stack:
        http = stack.routers[0].http
        assert http is not None
        ports = (stack.routers[0].port, http.port)
        authority.issue("second", *LOOPBACK).write(tmp_path, "router")
        assert ["first", "first"] == [await asyncio.to_thread(shown_by, port) for port in ports]
        monkeypatch.setattr(tls_files, "LOOK_S", 0.0)
        assert ["second", "second"] == [await asyncio.to_thread(shown_by, port) for port in ports]


async def test_a_client_certificate_says_who_calls(tmp_path: Path) -> None:
    servers, clients, others = Authority("servers"), Authority("clients"), Authority("others")
    keys = tmp_path / "keys.toml"
    key = await asyncio.to_thread(add_key, keys, KeyPlan("by-key", "operator"))
    text = await asyncio.to_thread(keys.read_text)
    entries = '\n[[certificates]]\nuri = "spiffe://x/acme"\ntenant = "acme"\nmodels = ["other"]\n'
    await asyncio.to_thread(keys.write_text, text + entries)
    sections = tls(tmp_path, servers.issue("router", *LOOPBACK), client_ca_file=clients.write(tmp_path))
    sections["auth"] = {"keys_file": str(keys)}
    acme, stranger = clients.issue("acme", uri("spiffe://x/acme")), clients.issue("stranger")

    async with running_stack(tmp_path, sections=sections, dial=dialer(servers, acme)) as stack:
        target = f"127.0.0.1:{stack.routers[0].port}"

        def client(pair: Pair | None, **options: Any) -> AsyncClient:
            shown = Tls(servers.pem, pair.certificate, pair.key) if pair is not None else Tls(servers.pem)
            return AsyncClient(target, tls=shown, retry=ONCE, **options)

        async with client(acme) as known:
            assert () == await known.list_models()
            with pytest.raises(PermissionDeniedError, match=r"model 'demo' .*tenant 'acme'"):
                await known.generate("demo", "x")
            with pytest.raises(PermissionDeniedError, match=r"role operator, role admin"):
                await known.cluster_status()
        async with client(stranger) as unknown:
            with pytest.raises(UnauthenticatedError, match="credentials are missing"):
                await unknown.list_models()
        async with client(stranger, api_key=key) as with_key:
            assert ["demo"] == [model.name for model in await with_key.list_models()]
            assert "demo" == (await with_key.cluster_status()).pools[0].name
        for refused in (None, others.issue("acme", uri("spiffe://x/acme"))):
            async with client(refused, api_key=key) as outside:
                with pytest.raises(UnavailableError):
                    await outside.list_models()


async def test_the_client_authority_changes_too(tmp_path: Path) -> None:
    servers, before, after = Authority("servers"), Authority("before"), Authority("after")
    sections = tls(tmp_path, servers.issue("router", *LOOPBACK), client_ca_file=before.write(tmp_path))
    async with running_stack(
        tmp_path, replicas=0, sections=sections, dial=dialer(servers, before.issue("one"))
    ) as stack:
        status = admin_pb2.GetClusterStatusRequest()
        assert 1 == len((await stack.admin().GetClusterStatus(status)).pools)
        await asyncio.to_thread(after.write, tmp_path)
        target = f"127.0.0.1:{stack.routers[0].port}"
        async with channel(target, servers, after.issue("two")) as fresh:
            stub = inference_pb2_grpc.InferenceServiceStub(fresh)
            assert 1 == len((await stub.ListModels(api.ListModelsRequest())).models)
        async with channel(target, servers, before.issue("three")) as stale:
            with pytest.raises(grpc.aio.AioRpcError):
                await inference_pb2_grpc.InferenceServiceStub(stale).ListModels(api.ListModelsRequest())


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (
            lambda folder: (folder / "router.key").unlink(),
            r"router\.tls\.private_key_file: .*router\.key cannot be read",
        ),
        (lambda folder: (folder / "router.crt").write_text("x"), "no certificate with its unencrypted private key"),
        (lambda folder: Authority().issue("other").write(folder, "other"), ""),
        (
            lambda folder: (folder / "router.key").write_bytes(Authority().issue("other").key),
            "no certificate with its unencrypted private key",
        ),
        (lambda folder: (folder / "ca.crt").write_text("x"), r"ca\.crt has no CA certificate"),
    ],
)
def test_files_that_do_not_fit_are_named_before_the_port_opens(
    tmp_path: Path, spoil: Callable[[Path], object], expected: str
) -> None:
    authority = Authority()
    sections = tls(tmp_path, authority.issue("router"), client_ca_file=authority.write(tmp_path))
    spoil(tmp_path)
    settings = load_settings(flags=sections, environ={})
    queues = QueueFactory(*[lambda *_: pytest.fail("must not connect")] * 10)
    if not expected:
        # Nothing listens there: composing a router connects to nothing.
        build_router(settings, SECRET, redis_factory(settings, "redis://127.0.0.1:1"))
        return
    with pytest.raises(SettingsError, match=expected):
        build_router(settings, SECRET, queues)
