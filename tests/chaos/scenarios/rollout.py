"""Roll-outs in the middle of which something dies."""

from __future__ import annotations

from tests.chaos.checker import Bounds
from tests.chaos.cluster import ClusterPlan
from tests.chaos.faults import Kill, Start
from tests.chaos.load import Kind, Load
from tests.chaos.redis_faults import FlushAll
from tests.chaos.rollout_faults import BeginRollout, RolloutEnds
from tests.chaos.scenario import After, Midway, Scenario, Step

LOAD = Load(kind=Kind.RESUMING, output_tokens=50, deadline_s=60.0)
PLAN = ClusterPlan(kept=True, settings={"router": {"max_attempts": 5}})
BOUNDS = Bounds(
    max_decodes=5, exact=False, min_finished=6, call_codes=frozenset({"UNAVAILABLE"}), recovery_s=None, stall_s=60.0
)
BEGIN = Step(Midway(6), BeginRollout("router-1", {"sim": {"max_num_seqs": 12}}))
DONE = RolloutEnds("router-1", ("done",))
OVER = RolloutEnds("router-1", ("done", "returned"))
"""Where both that died had the new revision, the roll-out goes back by itself."""

SCENARIOS = (
    Scenario(
        name="router and Redis' data lost in a roll-out",
        claim="The router that is left goes on with the roll-out, also after Redis forgot it; no request fails.",
        faults=(1, 10),
        steps=(
            BEGIN,
            Step(After(2.0), Kill("router-0")),
            Step(After(1.0), FlushAll()),
            Step(After(1.0), Start("router-0")),
            Step(After(45.0), DONE),
        ),
        load=LOAD,
        plan=PLAN,
        bounds=BOUNDS,
    ),
    Scenario(
        name="replicas killed in a roll-out",
        claim="A replica that dies in a roll-out is replaced, and at the end all have one revision; no request fails.",
        faults=(24,),
        steps=(
            BEGIN,
            Step(After(5.0), Kill("replica-0")),
            Step(After(8.0), Kill("replica-1")),
            Step(After(60.0), OVER),
        ),
        load=LOAD,
        plan=PLAN,
        bounds=BOUNDS,
    ),
)
