"""When to act on what a decision would give up."""

from __future__ import annotations

from dataclasses import replace

from cluster.control.decision import Relief, Step
from cluster.control.slow import SlowDecision
from cluster.control.snapshot import GroupSnapshot


def spare_clients(made: SlowDecision, seen: GroupSnapshot) -> SlowDecision:
    """Refuse nobody while replicas are on their way: who has no limit of its own would rather wait for them. Starts
    that failed are not on their way.
    """
    coming = max(made.replicas, seen.coming) - seen.ready
    if made.relief is not Relief.SHED or coming <= 0:
        return made
    step = Step(
        f"relief_{Relief.PREEMPT_BATCH.value}", made.replicas, f"{coming} replicas are to come: nobody is refused yet"
    )
    return replace(made, relief=Relief.PREEMPT_BATCH, steps=(*made.steps, step))
