"""What the registry changes in a replica's pool while it runs."""

from __future__ import annotations

from cluster.queue.cells.layout import Layout
from cluster.registry.contract import Entry
from cluster.registry.pools import KIND, in_force, read_entry
from cluster.registry.view import RegistryView
from deployments.replica.governor import Governor
from deployments.replica.life import ReplicaPlan


def follow_pool(view: RegistryView, plan: ReplicaPlan, governor: Governor, layout: Layout) -> None:
    """Control the batch limit, and know the pool's cells, as its entry says, now and whenever it changes."""

    def hear(entry: Entry) -> None:
        # What a newer release wrote changes nothing.
        if entry.name == plan.pool and (entry.value is None or read_entry(entry) is not None):
            own = in_force({plan.pool: plan.pool_settings}, {plan.pool: entry}, plan.fixed)
            if plan.pool in own:
                governor.change(own[plan.pool].control)
                layout.change(own[plan.pool].cells)

    view.listen(KIND, hear)
