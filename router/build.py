"""Composition of a router. Nothing connects before it starts."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health

from cluster.responses.contract import ResponseStore
from cluster.settings import PoolSettings, Settings
from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import LinkDialer, TlsFiles
from router.admin.open import AdminParts, open_admin
from router.catalog import Catalog
from router.dispatch.pool import Pool
from router.dispatch.pool_set import PoolSet
from router.embeddings.admit import PoolingAdmission
from router.embeddings.servicer import EmbeddingServicer
from router.grpc_server.public import public_server
from router.handlers import service_handler
from router.http.calls import Calls
from router.http.files.endpoints import ENDPOINTS
from router.http.files.results import line_bytes
from router.http.responses.runs import ResponseRuns, response_tools
from router.http.server import HttpServices, build_http
from router.identity import Authenticator, TenantPolicies
from router.identity.issuers import jwks_setting
from router.inference.open import InferenceParts, open_inference
from router.jobs import JobParts, JobStores, open_jobs
from router.metrics import RouterMetrics
from router.pool_keeper import PoolKeeper, PoolUsers
from router.records.genai_metrics import push_plan
from router.records.keeper import RecordKeeper
from router.records.tracing import Tracing, open_tracing
from router.registry.build import RegistryParts, open_registry
from router.routing import Aliases
from router.server import SERVICES, Router, RouterParts
from router.stores import QueueFactory


@dataclass(frozen=True, slots=True)
class _Base:
    """What all services rest on."""

    settings: Settings
    """With the pools of now: they come and go."""
    running: dict[str, PoolSettings]
    """These pools, to be changed."""
    router_id: str
    metrics: RouterMetrics
    open_pool: Callable[[str, PoolSettings], Pool]
    pools: PoolSet
    registry: RegistryParts
    aliases: Aliases
    catalog: Catalog
    policies: TenantPolicies
    records: RecordKeeper
    tracing: Tracing | None


@dataclass(frozen=True, slots=True)
class _Services:
    """What answers calls."""

    inference: InferenceParts
    embeddings: EmbeddingServicer
    jobs: JobParts
    admin: AdminParts
    responses: ResponseStore


def build_router(
    settings: Settings,
    secret: ClusterSecret,
    queues: QueueFactory,
    *,
    port: int | None = None,
    metrics_port: int | None = None,
    shared_port: bool = False,
) -> Router:
    """Compose a router. It connects to nothing and has no port before `Router.start`.

    `port` and `metrics_port` override the settings. `shared_port` lets several processes listen on one port.

    Raises:
        SettingsError: keys or certificates are not as they must be, or no caller could be let in.
    """
    own, metrics = settings.router, RouterMetrics()
    # These read files and may fail, so they come before everything that opens something.
    authenticator = Authenticator(settings, metrics.reloaded, metrics.registry)
    for name, issuer in settings.auth.jwt.items():
        if issuer.jwks_file is not None:
            metrics.watch_file(jwks_setting(name))
    tls = TlsFiles.of_router(own.tls, metrics.reloaded) if own.tls is not None else None
    base = _open_base(settings, secret, queues, metrics, authenticator)
    services = _open_services(base, secret, queues)
    router_id, admin = base.router_id, services.admin
    users = PoolUsers(base.catalog, metrics, services.jobs, admin.rollouts, admin.control_api)
    health_service = health.aio.HealthServicer()  # type: ignore[attr-defined]  # missing in the stubs
    secret.watch(metrics.reloaded)
    names = [service.full_name for service in SERVICES]
    parts = RouterParts(
        pools=base.pools,
        pool_keeper=PoolKeeper(
            *(base.pools, base.running, base.registry.view, base.open_pool, users), fixed=settings.registry
        ),
        bell=queues.bell(router_id),
        authenticator=authenticator,
        metrics=metrics,
        catalog=base.catalog,
        inference=services.inference.servicer,
        jobs=services.jobs,
        control_api=admin.control_api,
        records=base.records,
        registry=base.registry.view,
        rollouts=admin.rollouts,
        announced=admin.announced,
        push=push_plan(base.settings, router_id),
        tracing=base.tracing,
        health=health_service,
        server=public_server(own, _handlers(base, services), health_service, names, shared_port=shared_port),
        tls=tls,
        http=build_http(own, _http_services(base, services), tls, shared_port=shared_port),
    )
    return Router(
        router_id,
        own,
        parts,
        own.port if port is None else port,
        own.metrics_port if metrics_port is None else metrics_port,
    )


def _open_base(
    settings: Settings,
    secret: ClusterSecret,
    queues: QueueFactory,
    metrics: RouterMetrics,
    authenticator: Authenticator,
) -> _Base:
    router_id, dialer = f"router-{secrets.token_hex(4)}", LinkDialer(settings.replica.tls, metrics.reloaded)
    # A copy, in which pools come and go; others read it.
    running = dict(settings.pools)
    settings = settings.model_copy(update={"pools": running})

    def open_pool(name: str, pool: PoolSettings) -> Pool:
        own_pool = settings.model_copy(update={"pools": {name: pool}})
        return Pool(name, router_id, own_pool, queues.queue, secret, dialer)

    pools = PoolSet({name: open_pool(name, pool) for name, pool in running.items()})
    registry = open_registry(settings, queues.registry(), router_id, authenticator)
    aliases = Aliases(settings, registry.view)
    cache, limits = settings.cluster.folder / "router-cache", settings.router.limits
    return _Base(
        settings=settings,
        running=running,
        router_id=router_id,
        metrics=metrics,
        open_pool=open_pool,
        pools=pools,
        registry=registry,
        aliases=aliases,
        catalog=Catalog(pools, cache, limits, aliases, registry.adapters),
        policies=TenantPolicies(settings, registry.tenants.all),
        records=RecordKeeper(pools, queues.records),
        tracing=open_tracing(settings, router_id),
    )


def _open_services(base: _Base, secret: ClusterSecret, queues: QueueFactory) -> _Services:
    pools, metrics, records = base.pools, base.metrics, base.records
    inference = open_inference(
        base.settings,
        secret,
        base.router_id,
        pools=pools,
        catalog=base.catalog,
        aliases=base.aliases,
        policies=base.policies,
        metrics=metrics,
        records=records,
        tracing=base.tracing,
    )
    servicer, unkeyed = inference.servicer, inference.generations.unkeyed
    pooling = PoolingAdmission(base.catalog, inference.admission, base.policies, inference.salts, inference.forwarding)
    jobs = open_jobs(
        base.settings,
        base.router_id,
        JobStores(pools, queues.jobs, queues.job_pools()),
        pools=pools,
        catalog=base.catalog,
        inference=inference,
        pooling=pooling,
        metrics=metrics,
        records=records,
        line_bytes=line_bytes,
        endpoints=ENDPOINTS,
        revocations=base.registry.revocations,
    )
    responses = queues.responses()
    admin = open_admin(
        base.settings,
        base.router_id,
        queues,
        pools=pools,
        registry=base.registry,
        aliases=base.aliases,
        policies=base.policies,
        records=records,
        metrics=metrics,
        # Whoever serves HTTP closes it.
        responses=responses if base.settings.router.http.port is not None else None,
    )
    embeddings = EmbeddingServicer(pooling, inference.limits, metrics, servicer.entered, unkeyed)
    return _Services(inference, embeddings, jobs, admin, responses)


def _handlers(base: _Base, services: _Services) -> list[grpc.GenericRpcHandler[Any, Any]]:
    """Return gRPC's handlers, in the order of the services."""
    servicers = (services.inference.servicer, services.embeddings, services.jobs.servicer, services.admin.servicer)
    return [
        service_handler(service, servicer, base.metrics, base.registry.authenticate)
        for service, servicer in zip(SERVICES, servicers, strict=True)
    ]


def _http_services(base: _Base, services: _Services) -> HttpServices:
    inference, registry, keys = services.inference, base.registry, base.registry.keys
    known = base.settings.auth.credentials
    calls = Calls(
        *(inference.servicer, registry.authenticate, base.metrics),
        keys=lambda: known or bool(keys),
        everybody=not known,
    )
    tools = response_tools(base.settings, services.responses, inference.generations, inference.limits)
    responses = ResponseRuns(tools, registry.revocations)
    return HttpServices(calls, services.admin.servicer, services.embeddings, services.jobs.tools, responses)
