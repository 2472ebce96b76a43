"""What the parts of a pool share."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.lifecycle import TaskOwner
from cluster.queue.contract import Queue
from router.generation.choice_table import ChoiceTable


@dataclass(frozen=True, slots=True)
class PoolContext:
    """One pool of one router, as its parts see it."""

    name: str
    router_id: str
    queue: Queue
    """The queue, for the router's loop."""
    owner: TaskOwner
    """Owner of tasks that end with the pool."""
    choices: ChoiceTable
