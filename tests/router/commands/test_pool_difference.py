"""What `penstock apply` changes in the pools, and how."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.control.settings import operating_point
from cluster.rollout.changes import changed, successor
from cluster.settings import PoolSettings
from router.commands.registry.pool_difference import Means, RunningPool, pool_changes


def pool(**fields: Any) -> PoolSettings:
    return PoolSettings.model_validate({"engine": "sim", **fields})


def running(own: PoolSettings, **revision: Any) -> RunningPool:
    return RunningPool(own, revision, operating_point(own))


def test_pools_that_are_alike_change_nothing() -> None:
    assert [] == pool_changes({"a": pool()}, {"a": running(pool())}, prune=True)


def test_a_pool_is_added_and_one_that_is_not_wanted_goes_only_where_asked() -> None:
    wanted, here = {"a": pool()}, {"b": running(pool())}
    assert ["a"] == [each.name for each in pool_changes(wanted, here, prune=False)]
    both = pool_changes(wanted, here, prune=True)
    assert [("a", True, False), ("b", False, True)] == [(x.name, x.before is None, x.after is None) for x in both]


@pytest.mark.parametrize(
    ("fields", "field", "means"),
    [
        ({"model": "/models/new"}, "model", Means.ROLLOUT),
        ({"sim": {"max_num_seqs": 8}}, "sim.max_num_seqs", Means.ROLLOUT),
        ({"vllm": {"extra": {"seed": 3}}}, "vllm.extra.seed", Means.ROLLOUT),
        ({"slo": {"batch": {"ttft_p99_s": 9.0}}}, "slo.batch.ttft_p99_s", Means.AT_ONCE),
        ({"price_per_gpu_hour": 2.0}, "price_per_gpu_hour", Means.AT_ONCE),
        ({"replicas": 4}, "replicas", Means.AT_ONCE),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size", Means.ROLLOUT),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size", Means.RESTART),
        ({"control": {"window_s": 5.0}}, "control.window_s", Means.AT_ONCE),
        ({"autoscale": {"drain_s": 5.0}}, "autoscale.drain_s", Means.AT_ONCE),
        ({"rollout": {"attempts": 5}}, "rollout.attempts", Means.AT_ONCE),
        ({"price_per_million_output_tokens": 5.0}, "price_per_million_output_tokens", Means.AT_ONCE),
    ],
)
def test_each_setting_has_its_own_way(fields: dict[str, Any], field: str, means: Means) -> None:
    (change,) = pool_changes({"a": pool(**fields)}, {"a": running(pool())}, prune=False)
    assert (field, means) in [(each.field, each.means) for each in change.fields]


def test_the_number_of_an_active_autoscaler_is_its_own() -> None:
    scaled = {"autoscale": {"mode": "active", "max_replicas": 4}}
    (change,) = pool_changes({"a": pool(**scaled, replicas=2)}, {"a": running(pool(**scaled))}, prune=False)
    assert [Means.RESTART] == [each.means for each in change.fields]
    assert change.replicas is None


def test_an_entry_gets_what_it_can_change_and_nothing_else() -> None:
    wanted = pool(control={"window_s": 5.0}, price_per_gpu_hour=2.0, sim={"max_num_seqs": 8})
    (change,) = pool_changes({"a": wanted}, {"a": running(pool())}, prune=False)
    assert pool(control={"window_s": 5.0}) == change.entry
    (change,) = pool_changes({"a": pool(price_per_gpu_hour=2.0)}, {"a": running(pool())}, prune=False)
    assert change.entry is None


def test_what_runs_is_compared_and_not_what_was_declared() -> None:
    here = {"a": running(pool(), sim={"max_num_seqs": 8})}
    assert [] == pool_changes({"a": pool(sim={"max_num_seqs": 8})}, here, prune=False)
    (back,) = pool_changes({"a": pool()}, here, prune=False)
    assert {"sim": {"max_num_seqs": 64}} == back.revision


@pytest.mark.parametrize(
    ("own", "revision", "wanted"),
    [
        ({}, {}, {"sim": {"max_num_seqs": 8, "answer": "yes"}}),
        ({"engine": "vllm", "model": "/m/a"}, {"vllm": {"extra": {"seed": 3}}}, {"engine": "vllm", "model": "/m/a"}),
        ({"engine": "vllm"}, {}, {"engine": "vllm", "model": "/m/b", "vllm": {"max_model_len": 512}}),
        ({"model": "org/a", "revision": "main"}, {}, {"model": "org/b", "revision": "main"}),
        ({}, {"model": "org/a", "revision": "main"}, {"model": "org/b", "revision": "main"}),
        ({"engine": "vllm"}, {}, {"engine": "vllm", "model": "/m/b", "vllm": {"tool_call_parser": "hermes"}}),
    ],
    ids=["settings", "taken out again", "another model", "same revision", "that of a roll-out", "same parser"],
)
def test_a_roll_out_arrives_at_what_is_wanted(
    own: dict[str, Any], revision: dict[str, Any], wanted: dict[str, Any]
) -> None:
    (change,) = pool_changes({"a": pool(**wanted)}, {"a": running(pool(**own), **revision)}, prune=False)
    assert {Means.ROLLOUT} == {each.means for each in change.fields}
    assert pool(**wanted) == changed(pool(**own), successor(pool(**own), revision, change.revision))


def test_what_a_roll_out_cannot_take_out_needs_a_restart() -> None:
    own = pool(engine="vllm", model="/m/a", vllm={"max_model_len": 512})
    (change,) = pool_changes({"a": pool(engine="vllm", model="/m/a")}, {"a": running(own)}, prune=False)
    assert [("vllm.max_model_len", Means.RESTART)] == [(each.field, each.means) for each in change.fields]


def test_a_new_operating_point_has_all_that_is_wanted() -> None:
    wanted = pool(slo={"interactive": {"itl_p95_s": 0.1}}, budget_per_hour=3.0, price_per_gpu_hour=1.0)
    (change,) = pool_changes({"a": wanted}, {"a": running(pool())}, prune=False)
    assert operating_point(wanted) == change.point
    assert change.replicas is None
    assert {} == change.revision
