"""The profile of a serving replica, measured through a router as its clients see it."""

from __future__ import annotations

import re

from cluster.errors import SettingsError
from cluster.nearest import did_you_mean
from cluster.plural import counted
from deployments.engines.limits import PREFILL_WINDOW_STEPS
from loadtest.profile.drive import Facts, Tell, measure
from loadtest.profile.source import RouterSource
from loadtest.profile.stored import Profile
from penstock.client import AsyncClient, ClusterStatus, ModelDescription
from penstock.models import ReplicaState

_GROUP = re.compile(r"[0-9a-f]+-(?P<hardware>.+)-tp(?P<ranks>\d+)-(?P<precision>[^-]+)")


async def profile_cluster(client: AsyncClient, model: str, *, rounds: int, tell: Tell) -> Profile:
    """Measure the one replica of a model. It must have no other load meanwhile.

    Args:
        client: of the cluster's routers.
        model: empty is the only one.
        rounds: as in `measure`.
        tell: as in `measure`.

    Raises:
        SettingsError: the model is unknown, has not one replica, or is in use.
        EngineError: nothing can be fitted.
        PenstockClientError: the cluster does not serve.
    """
    models = {each.name: each for each in await client.list_models()}
    if model not in models and (model or len(models) != 1):
        known = ", ".join(models) or "none that is served"
        raise SettingsError(f"model must be one of {known}, got {model or 'none'}{did_you_mean(model, models)}")
    chosen = models[model] if model else next(iter(models.values()))
    facts = facts_of(chosen, await client.cluster_status())
    return await measure(RouterSource(client, chosen.name), facts, rounds=rounds, tell=tell)


def facts_of(model: ModelDescription, status: ClusterStatus) -> Facts:
    """Return the facts for a profile, from the reports of routers.

    Raises:
        SettingsError: the model has not one replica, or is in use.
    """
    pool = next(each for each in status.pools if each.name == model.name)
    ready = [each for each in pool.replicas if each.state is ReplicaState.READY]
    if len(ready) != 1 or len(pool.replicas) != 1:
        raise SettingsError(
            f"profile: {model.name} must have one replica, or sequences would be spread; it has {len(pool.replicas)}"
        )
    if pool.waiting or pool.running:
        run = counted(pool.running, "request runs", "requests run")
        wait = counted(pool.waiting, "waits", "wait")
        raise SettingsError(f"profile: {model.name} must be idle; {run} and {wait}")
    (replica,) = ready
    group = _GROUP.fullmatch(replica.group_id)
    if group is None or not replica.kv_tokens:
        raise SettingsError(
            f"profile: the router does not say enough of replica {replica.replica_id}; is it an older one?"
        )
    return Facts(
        model=model.name,
        hardware=group["hardware"],
        tensor_parallel=int(group["ranks"]),
        precision=group["precision"],
        kv_tokens=replica.kv_tokens,
        max_sequences=replica.batch_limit,
        step_tokens=max(1, replica.prefill_window_tokens // PREFILL_WINDOW_STEPS),
        context=model.max_context_tokens,
    )
