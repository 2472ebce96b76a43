"""Settings that a roll-out can change, and their merging with those of the pool."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from cluster.errors import SettingsError
from cluster.rollout.record import Revision, Rollout, RolloutRules
from cluster.settings import PoolSettings
from cluster.settings.load import describe_errors
from cluster.settings.rollout import WAYS, Way, settings_that_change

CHANGEABLE = settings_that_change(Way.ROLLOUT)
"""Settings of a pool that a roll-out can change."""
_TEXTS = {
    Way.ENTRY: "changes with `penstock apply`, and no replica restarts",
    Way.POINT: "is part of the operating point, which `penstock operating-point` changes",
    Way.NEVER: "needs a restart of the cluster",
    None: "is no setting of a pool",
}
SUCCESSOR = (
    "Add a pool of another name that has it, lead an alias from this pool to that one, and take this one away; on "
    "Kubernetes as the manual says there, under Change an image. Or restart the cluster with the new settings"
)
"""Way to what replicas of one pool can't differ in."""
_ELSEWHERE = {"image": f"is what a replica's machine runs, and no setting of a pool. {SUCCESSOR}"}
PARSERS = ("tool_call_parser", "reasoning_parser")
"""Settings of vLLM that the demo model brings along."""


def rules_of(pool: PoolSettings) -> RolloutRules:
    """Return the limits of a pool's roll-outs."""
    return RolloutRules(**pool.rollout.model_dump(), start_timeout_s=pool.autoscale.start_timeout_s)


def base_of(pool: PoolSettings) -> str:
    """Return the digest of the pool's own settings that a roll-out can change, without those at their defaults: a
    release may bring new settings and other defaults, and must not undo a roll-out.
    """
    tree = pool.model_dump(mode="json", include=set(CHANGEABLE), exclude_defaults=True)
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def applies(rollout: Rollout | None, pool: PoolSettings) -> bool:
    """Return whether a record is of these settings. Settings that changed since are the newer word."""
    return rollout is not None and rollout.base == base_of(pool)


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree with the values of another one over it. None takes a value out."""
    found = copy.deepcopy(dict(one))
    for key, value in other.items():
        if isinstance(value, Mapping):
            inner = found.get(key)
            found[key] = merged(inner if isinstance(inner, Mapping) else {}, value)
            if not found[key]:
                del found[key]
        elif value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


def successor(pool: PoolSettings, before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of the next revision: that of the one before, with changes over it. The revision of a model on
    its hub goes with the model, unless the changes name one.
    """
    found = merged(before, changes)
    if "revision" not in changes and found.get("model", pool.model) != before.get("model", pool.model):
        found.pop("revision", None)
    return found


def changed(pool: PoolSettings, changes: Mapping[str, Any]) -> PoolSettings:
    """Return the pool's settings with changes.

    Raises:
        SettingsError: names each setting that can't be changed, is unknown or is out of range.
    """
    if other := sorted(set(changes) - set(CHANGEABLE)):
        known = f"a roll-out can change {', '.join(CHANGEABLE)}"
        first = next((name for name in other if name not in WAYS), other[0])
        raise SettingsError(f"{first}: {_ELSEWHERE.get(first) or _TEXTS[WAYS.get(first)]}; {known}")
    tree = pool.model_dump(mode="json")
    if changes.get("model", pool.model) != pool.model == PoolSettings().model:
        # They came with the demo model, and go with it.
        demo = PoolSettings().vllm
        tree["vllm"] |= {name: None for name in PARSERS if getattr(pool.vllm, name) == getattr(demo, name)}
    if changes.get("model", pool.model) != pool.model:
        # It is one of the model that goes.
        tree["revision"] = ""
    for name, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(tree.get(name), dict)
        tree[name] = _over(tree[name], value) if both else value
    try:
        return PoolSettings.model_validate(tree)
    except ValidationError as error:
        raise SettingsError(describe_errors(error, root=PoolSettings)) from error


def settings_of(revision: Revision, pool: PoolSettings) -> PoolSettings:
    """Return the settings of a replica of a revision.

    Raises:
        SettingsError: this release does not know a setting of the revision.
    """
    return changed(pool, revision.changes) if revision.changes else pool


def _over(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(tree)
    for key, value in changes.items():
        inner = found.get(key)
        found[key] = _over(inner, value) if isinstance(value, Mapping) and isinstance(inner, Mapping) else value
    return found
