"""Composition of a router's generations: how they are admitted, routed, kept open and served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cluster.settings import Settings
from cluster.trust.secret import ClusterSecret
from router.affinity import CacheSalts
from router.catalog import Catalog
from router.dispatch.pool import Pool
from router.identity import TenantPolicies
from router.images.room import ImageRoom
from router.inference.admit import Admission
from router.inference.coalescing import Coalescing
from router.inference.constraints import ConstraintChecks
from router.inference.forward import Forwarding
from router.inference.keyed_generation import OpenGenerations
from router.inference.routed import RoutedAdmission
from router.inference.servicer import InferenceServicer
from router.inference.shadows import Shadows
from router.metrics import RouterMetrics
from router.records.genai_metrics import GenAiMetrics
from router.records.keeper import RecordKeeper
from router.records.tracing import Tracing
from router.routing import Aliases
from router.validation import RequestLimits


@dataclass(frozen=True, slots=True)
class InferenceParts:
    """A router's generations."""

    limits: RequestLimits
    constraints: ConstraintChecks
    salts: CacheSalts
    admission: Admission
    """Admission to a pool by its own name."""
    forwarding: Forwarding
    routed: RoutedAdmission
    """Admission by any name."""
    generations: OpenGenerations
    servicer: InferenceServicer


def open_inference(
    settings: Settings,
    secret: ClusterSecret,
    router_id: str,
    *,
    pools: Mapping[str, Pool],
    catalog: Catalog,
    aliases: Aliases,
    policies: TenantPolicies,
    metrics: RouterMetrics,
    records: RecordKeeper,
    tracing: Tracing | None,
) -> InferenceParts:
    """Compose the parts. Metrics and traces hear of what ends and what is refused."""
    own = settings.router
    limits = RequestLimits(own.max_prompt_bytes, own.limits)
    constraints = ConstraintChecks(own.limits)
    room = ImageRoom(own.max_images_mb * (1 << 20))
    salts = CacheSalts(secret, shared=own.affinity.share_prefixes_across_tenants)
    admission = Admission(
        catalog,
        secret,
        router_id,
        policies,
        own.expected_output_tokens,
        salts,
        constraints=constraints,
        room=room,
        tracing=tracing.sampling if tracing is not None else None,
    )
    for observer in (GenAiMetrics(metrics.registry, pools), tracing):
        if observer is not None:
            records.listeners.append(observer.take)
            admission.on_refused.append(observer.refused)
    forwarding = Forwarding(aliases, pools, metrics, Shadows(metrics, records.closed))
    routed = RoutedAdmission(admission, forwarding, pools, secret)
    generations = OpenGenerations(routed, pools, metrics, settings.queue.attach_grace_s, records.closed)
    servicer = InferenceServicer(pools, catalog, generations, limits, metrics, Coalescing(own.merging), room=room)
    metrics.watch(pools, lambda: servicer.open_calls)
    return InferenceParts(limits, constraints, salts, admission, forwarding, routed, generations, servicer)
