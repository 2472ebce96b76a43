"""The process that starts replicas dies while pools come and go."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.checker import Bounds
from tests.chaos.cluster import ClusterPlan
from tests.chaos.faults import Start
from tests.chaos.load import Kind, Load
from tests.chaos.pool_faults import AddPool, KillLauncher, PoolGone, PoolServes, RemovePool, RollPool
from tests.chaos.scenario import After, Control, Midway, Scenario, Step

LOAD = Load(kind=Kind.RESUMING, output_tokens=50, deadline_s=60.0)
PLAN = ClusterPlan(launcher="whole")
BOUNDS = Bounds(
    max_decodes=3, exact=False, min_finished=6, call_codes=frozenset({"UNAVAILABLE"}), recovery_s=None, stall_s=60.0
)
"""Pool `demo` has nothing to do with it."""
ADD = AddPool("router-0", 2)

SCENARIOS = (
    Scenario(
        name="launcher killed while a pool is removed",
        claim="Its successor ends the pool: no process, key or roll-out of it is left, and a later one begins anew.",
        faults=(11,),
        steps=(
            Step(Midway(6), ADD),
            Step(After(0.0), RollPool("router-1")),
            Step(After(0.0), RemovePool("router-0")),
            Step(After(1.0), KillLauncher()),
            Step(After(1.0), Start("launcher")),
            Step(After(25.0), PoolGone()),
            Step(After(0.0), ADD),
            Step(After(0.0), PoolServes("router-1", 2, fresh=True)),
        ),
        load=LOAD,
        plan=PLAN,
        bounds=BOUNDS,
        control=Control("ends that are taken up", frozenset({"I8"}), {"plan": replace(PLAN, launcher="cleanup")}),
    ),
    Scenario(
        name="launcher killed while a pool is added",
        claim="Its successor starts the pool with its number of replicas, and nothing of the first start is left.",
        faults=(11,),
        steps=(
            Step(Midway(6), AddPool("router-0", 3, start_s=3.0, waits=False)),
            Step(After(1.0), KillLauncher()),
            Step(After(1.0), Start("launcher")),
            Step(After(20.0), PoolServes("router-1", 3)),
        ),
        load=LOAD,
        plan=PLAN,
        bounds=BOUNDS,
        control=Control("a look at the registry", frozenset({"I8"}), {"plan": replace(PLAN, launcher="registry")}),
    ),
)
