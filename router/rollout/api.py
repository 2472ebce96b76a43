"""Orders of operators for roll-outs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.struct_pb2 import Struct

from cluster.addresses import bare_host, is_loopback
from cluster.bootstrap.models import check_model
from cluster.errors import InvalidRequestError, RolloutStateError, SettingsError
from cluster.registry.contract import Sighting
from cluster.registry.pools import launcher_of
from cluster.rollout.changes import SUCCESSOR, applies, base_of, changed, rules_of, successor
from cluster.rollout.decide import go_back, go_on, hold
from cluster.rollout.record import Revision, Rollout, RolloutRules
from cluster.settings import EngineKind, PoolSettings
from cluster.trust.masking import masked_tree
from penstock.v1 import rollout_pb2 as api
from penstock.values.admin.rollout import RolloutState
from penstock.values.fields import content_of
from penstock.wire import duration_from_wire, duration_to_wire
from router.identity import Caller, Role, may_use, require_model, wrong_pool
from router.rollout.keeper import PoolRollout, RolloutKeeper

_LOG = logging.getLogger(__name__)

MOST_SURGE = 64
MOST_JUDGE_S = 86_400.0
_LEADER_S = 60.0
"""Seconds that an autoscaler may take to see that a roll-out has ended, and to act on what it looks back at."""
_RESERVED = f"can't change while the pool runs: Ray reserves the same GPUs for each replica of a pool. {SUCCESSOR}"
_STATES = {
    RolloutState.ROLLING: api.ROLLOUT_STATE_ROLLING,
    RolloutState.HELD: api.ROLLOUT_STATE_HELD,
    RolloutState.GOING_BACK: api.ROLLOUT_STATE_GOING_BACK,
    RolloutState.DONE: api.ROLLOUT_STATE_DONE,
    RolloutState.RETURNED: api.ROLLOUT_STATE_RETURNED,
}


class RolloutApi:
    """The calls of AdminService that concern roll-outs."""

    def __init__(
        self,
        keeper: RolloutKeeper,
        target: Callable[[str], Awaitable[int]],
        watchers: Callable[[], Awaitable[Sequence[Sighting]]],
        addresses: Callable[[str], Sequence[str]],
    ) -> None:
        """`target` returns the number of replicas that a pool's autoscaler decided last; 0 without one. `watchers`
        returns who follows the registry, `addresses` where a pool's replicas are reached.
        """
        self._watchers = watchers
        self._addresses = addresses
        self._pools = keeper.pools
        self._target = target

    async def start(self, request: api.StartRolloutRequest, caller: Caller) -> api.StartRolloutResponse:
        """Answer StartRollout.

        Raises:
            InvalidRequestError: no such pool, or a value is wrong.
            PermissionDeniedError: the caller may not use the pool's model.
            RolloutStateError: another roll-out of the pool goes on, or nothing would change.
            QueueUnavailableError: the store does not answer.
        """
        pool = self._pool(request.pool, caller)
        changes, rules = _changes(request), _rules(request, pool.settings)
        await self._check_reserved(pool, changes)
        size = await self._size(pool)

        def begin(found: Rollout | None, now_ms: int) -> Rollout:
            before = found if applies(found, pool.settings) else None
            if before is not None and before.state.active:
                raise RolloutStateError(pool.name, f"a roll-out to revision {before.new.number} goes on")
            old = before.in_force if before is not None else Revision()
            number = 1 + max((found.new.number, found.old.number) if found is not None else (0,))
            new = Revision(number, successor(pool.settings, old.changes, changes))
            if new.changes == old.changes:
                raise RolloutStateError(pool.name, f"its replicas have these settings already: revision {old.number}")
            _check(pool, new, "changes", here=on_this_machine(self._addresses(pool.name)))
            replicas = _without_surge(before, size, rules, pool.settings, now_ms)
            return _begun(pool.settings, (old, new), rules, replicas, caller, now_ms)

        if request.dry_run:
            return api.StartRolloutResponse(rollout=await self._told(caller, pool, begin(*await pool.book.read())))
        after = await pool.book.change(begin)
        _LOG.warning(
            "admin.rollout", extra={"pool": pool.name, "tenant": caller.tenant, "changes": str(masked_tree(changes))}
        )
        return api.StartRolloutResponse(rollout=await self._told(caller, pool, after))

    async def get(self, request: api.GetRolloutRequest, caller: Caller) -> api.GetRolloutResponse:
        """Answer GetRollout.

        Raises:
            InvalidRequestError: no such pool.
            PermissionDeniedError: the caller may not use the pool's model.
            QueueUnavailableError: the store does not answer.
        """
        pool = self._pool(request.pool, caller)
        found, _ = await pool.book.read()
        if not applies(found, pool.settings):
            return api.GetRolloutResponse()
        return api.GetRolloutResponse(rollout=await self._told(caller, pool, found))

    async def change(self, request: api.ChangeRolloutRequest, caller: Caller) -> api.ChangeRolloutResponse:
        """Answer ChangeRollout.

        Raises:
            InvalidRequestError: no such pool, no order, or the way back leads to a model that is gone.
            PermissionDeniedError: the caller may not use the pool's model.
            RolloutStateError: the roll-out's state does not allow it.
            QueueUnavailableError: the store does not answer.
        """
        pool = self._pool(request.pool, caller)
        if request.action not in api.RolloutAction.values() or not request.action:
            raise InvalidRequestError.of("action", f"must be a RolloutAction, got {request.action}")
        size = await self._size(pool)

        def order(found: Rollout | None, now_ms: int) -> Rollout:
            if found is None or not applies(found, pool.settings):
                raise RolloutStateError(pool.name, "there is no roll-out")
            after = _ordered(found, request.action, size, pool.settings, caller, now_ms)
            if after is found:
                raise RolloutStateError(pool.name, f"the roll-out is {found.state.value!r}")
            if found.state is RolloutState.DONE:
                _check(pool, after.new, "action", here=on_this_machine(self._addresses(pool.name)))
            return after

        after = await pool.book.change(order)
        action = api.RolloutAction.Name(request.action)
        _LOG.warning("admin.rollout", extra={"pool": pool.name, "tenant": caller.tenant, "action": action})
        return api.ChangeRolloutResponse(rollout=await self._told(caller, pool, after))

    async def _check_reserved(self, pool: PoolRollout, changes: Mapping[str, Any]) -> None:
        """Check that replicas can have other accelerators than those that the platform reserves for each.

        Raises:
            InvalidRequestError: they can't.
        """
        if "tensor_parallel_size" not in changes or pool.settings.engine is EngineKind.SIM:
            return
        launcher = launcher_of(await self._watchers())
        if launcher is None or launcher.gpus:
            raise InvalidRequestError.of("changes", f"tensor_parallel_size: {_RESERVED}")

    async def _size(self, pool: PoolRollout) -> int:
        """Return the number of replicas that the pool should have."""
        here = sum(not one.leaving for one in await pool.members())
        # Without an autoscaler the number is that of the settings.
        wanted = await self._target(pool.name) if pool.settings.autoscale.mode == "active" else pool.settings.replicas
        return max(wanted, here, 1)

    def _pool(self, wanted: str, caller: Caller) -> PoolRollout:
        if wanted:
            require_model(caller, wanted)
        allowed = [name for name in self._pools if may_use(caller, name)]
        names = [wanted] if wanted else allowed
        if len(names) != 1 or names[0] not in self._pools:
            raise wrong_pool(wanted, allowed)
        return self._pools[names[0]]

    async def _told(self, caller: Caller, pool: PoolRollout, found: Rollout | None) -> api.Rollout | None:
        if found is None:
            return None
        members = await pool.members()
        # An admin compares them with a file.
        seen = dict if caller.role >= Role.ADMIN else masked_tree
        return api.Rollout(
            pool=pool.name,
            state=_STATES[found.state],
            old_revision=found.old.number,
            new_revision=found.new.number,
            old_changes=_struct(seen(found.old.changes)),
            new_changes=_struct(seen(found.new.changes)),
            size=found.size,
            surge=found.rules.surge,
            judge=duration_to_wire(found.rules.judge_s),
            reason=found.reason,
            failures=found.failures,
            steps=[api.RolloutStep(at_ms=step.at_ms, text=step.text) for step in found.steps],
            replicas=[
                api.RolloutReplica(
                    replica_id=one.replica_id,
                    revision=one.revision,
                    ready=one.ready,
                    passed=one.replica_id in found.passed,
                    retiring=one.replica_id in found.retiring,
                    ended=one.ended,
                    failed=one.failed,
                    late=one.late,
                )
                for one in sorted(members, key=lambda one: one.replica_id)
            ],
            by=found.by,
            began_at_ms=found.began_ms,
        )


def _begun(
    settings: PoolSettings,
    change: tuple[Revision, Revision],
    rules: RolloutRules,
    size: int,
    caller: Caller,
    now_ms: int,
) -> Rollout:
    old, new = change
    begun = Rollout(base_of(settings), old, new, rules, size=size, by=caller.tenant, began_ms=now_ms, allowed=1)
    return begun.told(now_ms, f"revision {old.number} to {new.number}, begun by {caller.tenant}")


def _ordered(found: Rollout, action: int, size: int, settings: PoolSettings, caller: Caller, now_ms: int) -> Rollout:
    match action:
        case api.ROLLOUT_ACTION_STOP:
            return hold(found, now_ms, caller.tenant)
        case api.ROLLOUT_ACTION_GO_ON:
            return go_on(_grown(found, size), now_ms, caller.tenant)
        case _ if found.state is RolloutState.DONE:
            new = replace(found.old, number=found.new.number + 1)
            # Nobody else would start replicas beyond the pool's number, and each step would wait for them.
            surge = found.rules.surge if settings.autoscale.mode == "active" else 0
            rules = replace(found.rules, surge=surge)
            replicas = _without_surge(found, size, rules, settings, now_ms)
            return _begun(settings, (found.new, new), rules, replicas, caller, now_ms)
        case _:
            return go_back(_grown(found, size), now_ms, f"asked for by {caller.tenant}")


def _without_surge(before: Rollout | None, size: int, rules: RolloutRules, settings: PoolSettings, now_ms: int) -> int:
    """Return the pool's number without the surge of a roll-out that has just ended. Its autoscaler looks back before it
    removes that, so it is there for the next one.
    """
    if before is None or not before.steps or not before.size < size <= before.size + before.rules.surge:
        return size
    if now_ms - before.steps[-1].at_ms > 1000 * (settings.autoscale.look_back_s + _LEADER_S):
        return size
    return max(before.size, size - rules.surge)


def _grown(found: Rollout, size: int) -> Rollout:
    """Return the record with the pool's number of now. While a roll-out is stopped the pool may grow, for days."""
    if found.state is not RolloutState.HELD:
        return found
    return replace(found, size=max(found.size, size - found.extra))


def _changes(request: api.StartRolloutRequest) -> Mapping[str, Any]:
    changes = content_of(request.changes)
    if not changes:
        raise InvalidRequestError.of("changes", "must have a setting of the pool, such as model")
    return changes


def _check(pool: PoolRollout, new: Revision, field: str, *, here: bool) -> None:
    """Check a revision, and the files of its model where its replicas see those of this machine (`here`). Without that
    a replica has ended before anybody knows that none can follow it. `field`: of the request, for what is wrong.
    """
    try:
        after = changed(pool.settings, new.changes)
        if here:
            check_model(pool.name, after)
    except SettingsError as error:
        raise InvalidRequestError.of(field, str(error)) from error


def on_this_machine(addresses: Sequence[str]) -> bool:
    """Return whether all replicas of a pool are on this machine, by their addresses."""
    hosts = {bare_host(address.rpartition(":")[0]) for address in addresses}
    return bool(hosts) and all(is_loopback(host) for host in hosts)


def _rules(request: api.StartRolloutRequest, settings: PoolSettings) -> RolloutRules:
    rules = rules_of(settings)
    if request.HasField("surge"):
        if request.surge > MOST_SURGE:
            raise InvalidRequestError.of("surge", f"must be at most {MOST_SURGE}, got {request.surge}")
        rules = replace(rules, surge=request.surge)
    if rules.surge and settings.autoscale.mode != "active":
        raise InvalidRequestError.of(
            "surge", f"must be 0 in a pool whose autoscale.mode is not 'active', got {rules.surge}"
        )
    if request.HasField("judge"):
        judge_s = duration_from_wire(request.judge)
        if not 0 <= judge_s <= MOST_JUDGE_S:
            raise InvalidRequestError.of("judge", f"must be from 0 to {MOST_JUDGE_S:g} s, got {judge_s:g}")
        rules = replace(rules, judge_s=judge_s)
    return rules


def _struct(fields: Mapping[str, Any]) -> Struct:
    found = Struct()
    found.update(dict(fields))
    return found
