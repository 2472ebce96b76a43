"""What a replica does next about its adapters. No engine, no time."""

from __future__ import annotations

import pytest

from cluster.errors import EngineRequestError
from cluster.registry.adapters import AdapterReport, AdapterState
from cluster.registry.contract import Entry
from deployments.replica.adapters.plan import FIRST_RETRY_S, AdapterPlan, Load, Unload, key_of

ONE, TWO = "1" * 64, "2" * 64


def entry(version: int, name: str = "poet", pool: str = "demo", *, deleted: bool = False) -> Entry:
    value = None if deleted else f'{{"pool": "{pool}", "source": "/a"}}'.encode()
    return Entry("adapter", name, version, 0, value)


def step(plan: AdapterPlan, now: float = 0.0, used: str = "") -> Load | Unload | None:
    return plan.next(now, lambda key: key == used)


def load(plan: AdapterPlan, digest: str = ONE, used: str = "") -> None:
    found = step(plan, used=used)
    assert isinstance(found, Load)
    plan.loaded(found, digest, 0.5)


def states(plan: AdapterPlan) -> dict[str, AdapterState]:
    return {name: each.state for name, each in plan.report({}).adapters.items()}


def test_adapters_of_the_pool_are_loaded_in_the_order_of_their_changes() -> None:
    plan = AdapterPlan("demo", ())
    for each in (entry(3, "c"), entry(1, "a"), entry(2, "b", "other")):
        plan.hear(each)
    assert not plan.settled
    order = []
    while isinstance(found := step(plan), Load):
        order.append(found.name)
        plan.loaded(found, ONE, 0.5)
    assert order == ["a", "c"]
    assert plan.settled
    assert plan.report({}).adapters["a"] == AdapterReport(AdapterState.LOADED, 1, "", ONE, 0.5)


def test_a_new_version_serves_when_it_is_loaded_and_the_old_one_goes_when_it_is_unused() -> None:
    plan = AdapterPlan("demo", ())
    plan.hear(entry(1))
    load(plan)
    old = plan.key("poet")
    plan.hear(entry(2))
    assert plan.key("poet") == old, "until the new one is there"
    assert states(plan) == {"poet": AdapterState.LOADING}
    load(plan, TWO)
    assert plan.key("poet") == key_of("poet", TWO) != old
    assert step(plan, used=old) is None
    assert step(plan) == Unload(old)
    plan.unloaded(old)
    assert step(plan) is None


def test_the_same_files_under_a_new_version_are_the_same_adapter() -> None:
    plan = AdapterPlan("demo", ())
    plan.hear(entry(1))
    load(plan)
    plan.hear(entry(2))
    assert plan.has(key_of("poet", ONE))
    load(plan)
    assert step(plan) is None


def test_a_deleted_adapter_is_refused_at_once_and_leaves_when_it_is_unused() -> None:
    plan = AdapterPlan("demo", ())
    plan.hear(entry(1))
    load(plan)
    key = plan.key("poet")
    plan.hear(entry(2, deleted=True))
    with pytest.raises(EngineRequestError, match="adapter 'poet' is not loaded"):
        plan.key("poet")
    assert step(plan, used=key) is None
    report = plan.report({key: 2})
    assert (report.adapters["poet"].state, report.uses) == (AdapterState.UNLOADING, {"poet": 2})
    # It comes back before it is gone: nothing has to be loaded.
    plan.hear(entry(3))
    assert plan.has(key)
    load(plan, used=key)
    assert step(plan) is None
    plan.hear(entry(4, pool="other"))
    assert step(plan) == Unload(key)
    plan.unloaded(key)
    assert plan.report({}).adapters == {}


def test_an_adapter_that_was_deleted_while_it_was_loaded_leaves_again() -> None:
    plan = AdapterPlan("demo", ())
    plan.hear(entry(1))
    found = step(plan)
    assert isinstance(found, Load)
    plan.hear(entry(2, deleted=True))
    plan.loaded(found, ONE, 0.5)
    assert step(plan) == Unload(key_of("poet", ONE))


def test_a_failure_is_told_and_tried_again_and_holds_up_nothing() -> None:
    plan = AdapterPlan("demo", ())
    plan.hear(entry(1))
    plan.hear(entry(2, "other"))
    found = step(plan)
    assert isinstance(found, Load)
    plan.failed(found, "there is no /a", 10.0)
    assert plan.report({}).adapters["poet"] == AdapterReport(AdapterState.FAILED, 1, "there is no /a")
    with pytest.raises(EngineRequestError, match=r"^adapter 'poet' could not be loaded$"):
        plan.key("poet")
    other = step(plan, 10.0)
    assert isinstance(other, Load)
    assert other.name == "other"
    plan.loaded(other, ONE, 0.5)
    assert plan.settled
    assert step(plan, 10.0 + FIRST_RETRY_S - 0.1) is None
    assert step(plan, 10.0 + FIRST_RETRY_S) == found
    plan.failed(found, "there is no /a", 20.0)
    assert step(plan, 20.0 + FIRST_RETRY_S) is None, "the pause doubles"
    plan.hear(entry(3))
    assert isinstance(step(plan, 20.0), Load), "a new version is tried at once"


def test_a_failed_new_version_leaves_the_old_one_in_service() -> None:
    plan = AdapterPlan("demo", ())
    plan.hear(entry(1))
    load(plan)
    plan.hear(entry(2))
    found = step(plan)
    assert isinstance(found, Load)
    plan.failed(found, "no", 0.0)
    assert plan.key("poet") == key_of("poet", ONE)
    assert states(plan) == {"poet": AdapterState.FAILED}


def test_adapters_of_the_settings_keep_their_names() -> None:
    plan = AdapterPlan("demo", ("poet",))
    assert plan.key("poet") == "poet"
    plan.hear(entry(1))
    assert step(plan) is None
    assert plan.settled
    assert "vllm.lora_modules" in plan.report({}).adapters["poet"].why
    assert plan.key("poet") == "poet"
