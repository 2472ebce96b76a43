"""Which cell a replica belongs to. Pure: a rule on what the replica sees of all cells."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster.queue.heartbeats import PoolView
from penstock.models import ReplicaState

MARGIN = 1.25
"""How many times the pressure of its cell another one's must be, after the move, for a replica to go there. A move that
would be undone at once is none."""
BUSY_MARGIN = 2.0
"""The same for a replica of a cell that has a line itself, or would have one: both cells' requests wait."""
MEMBERS_A_LEAVER = 16
"""Replicas of a cell for which one more may be leaving it while it runs something."""


@dataclass(frozen=True, slots=True)
class CellLoad:
    """Work and replicas of a cell, as a replica sees them."""

    work: int
    """Entries that wait or run."""
    waiting: int
    room: int
    """Sequences that its replicas take at a time."""
    members: tuple[str, ...]
    """Replicas that take work, those that hold the fewest slots first."""
    former: bool = False
    """Whether it takes no new requests: the pool has fewer cells now."""
    leaving: tuple[str, ...] = ()
    """Replicas that take no new work there because they are about to go to another cell, or are in one already."""


def load_of(view: PoolView, *, former: bool = False) -> CellLoad:
    """Return a cell's load from its view."""
    up = [each for each in view.replicas if each.state is ReplicaState.READY]
    ready = [each for each in up if each.windows.sequences]
    ready.sort(key=lambda each: (each.sequences, each.replica_id))
    waiting = sum(view.waiting)
    return CellLoad(
        # What a replica still runs of another cell takes room, too.
        waiting + max(view.running, sum(each.sequences for each in up)),
        waiting,
        sum(each.windows.sequences for each in ready),
        tuple(each.replica_id for each in ready),
        former,
        tuple(each.replica_id for each in up if not each.windows.sequences),
    )


def first_cell(replica_id: str, cells: Sequence[CellLoad | None]) -> int:
    """Return the cell that a new replica joins: one with the fewest replicas. Of several, replicas that start together
    take different ones. None stands for a cell that does not answer.
    """
    known = [number for number, load in enumerate(cells) if load is not None and not load.former]

    def order(number: int) -> tuple[int, bytes]:
        load = cells[number]
        name = f"{replica_id} {number}".encode()
        return len(load.members) if load is not None else 0, hashlib.blake2b(name, digest_size=8).digest()

    return min(known, key=order, default=0)


def with_member(here: CellLoad, replica_id: str, size: int) -> CellLoad:
    """Return the load of a replica's cell with its own room, which it does not offer while it is about to go."""
    if replica_id in here.members:
        return here
    leaving = tuple(name for name in here.leaving if name != replica_id)
    return replace(here, room=here.room + size, members=(replica_id, *here.members), leaving=leaving)


def leads(replica_id: str, here: CellLoad) -> bool:
    """Return whether a replica is the one of its cell that moves, if any does."""
    return here.members[:1] == (replica_id,)


def next_cell(replica_id: str, own: int, cells: Sequence[CellLoad | None], *, size: int, idle: bool) -> int | None:
    """Return the cell that a replica moves to; None where it stays.

    Only the replica of a cell that has the least to finish moves. One that runs something does so only for a line. A
    cell that has replicas keeps one. A move makes no other one the better choice, so two cells do not swap replicas for
    ever. Where many cells could give to one, as many do as it needs.

    Args:
        replica_id: the replica.
        own: its cell.
        cells: loads by number; None for a cell that does not answer.
        size: sequences that the replica takes at a time.
        idle: whether it runs nothing.
    """
    here = cells[own]
    if here is None:
        return _away(replica_id, cells) if idle else None
    if not leads(replica_id, here):
        return None
    loads = {number: load for number, load in enumerate(cells) if load and number != own}
    others = {number: load for number, load in loads.items() if not load.former}
    left = {number: load for number, load in loads.items() if load.former and load.waiting and not load.members}
    if not others and not left:
        return None
    if here.former:
        if here.waiting or not others:
            return None
        least = min(others, key=lambda number: (_pressure(others[number].work, others[number].room), number))
        return _after(others, least)
    if (bare := _bare(own, here, {**others, **left})) is not None:
        return bare
    if len(here.members) < 2 or not others:
        return None
    target = max(others, key=lambda number: (_pressure(others[number].work, others[number].room), -number))
    if _is_needed(target, own, {**others, own: here}, size=size, idle=idle):
        return target
    if not idle:
        return None
    # Without work the replicas spread evenly.
    fewest = min(others, key=lambda number: (len(others[number].members), number))
    few = others[fewest]
    evener = len(few.members) + 2 <= len(here.members)
    return fewest if evener and _pressure(few.work, few.room) >= _pressure(here.work, here.room) else None


def _is_needed(target: int, own: int, cells: dict[int, CellLoad], *, size: int, idle: bool) -> bool:
    """Return whether a cell should get a replica of another one."""
    here, there = cells[own], cells[target]
    if not _gives(here):
        return False
    before = _pressure(here.work, here.room - size)
    margin = MARGIN if idle or before <= 1.0 else BUSY_MARGIN
    if there.work <= there.room or _pressure(there.work, there.room + size) <= before * margin:
        return False
    # All cells see the same, so each knows which of them give: those with the least pressure, as many as are needed.
    givers = [
        (_pressure(load.work, load.room - size), number)
        for number, load in cells.items()
        if number != target and _gives(load)
    ]
    ahead = sum(giver < (before, own) for giver in givers)
    # Those that are in a cell already count with its room.
    there_already = {name for load in cells.values() for name in load.members}
    coming = sum(name not in there_already for load in cells.values() for name in load.leaving) + ahead
    return _pressure(there.work, there.room + size * (coming + 1)) > before * margin


def _gives(load: CellLoad) -> bool:
    """Return whether a cell has a replica to give."""
    return len(load.members) > 1 and len(load.leaving) <= len(load.members) // MEMBERS_A_LEAVER


def _bare(own: int, here: CellLoad, others: dict[int, CellLoad]) -> int | None:
    """Return a cell without replicas that this one must give one to: nothing else serves it."""
    bare = [number for number, load in others.items() if not load.members]
    if not bare:
        return None
    # Those with work first.
    target = min(bare, key=lambda number: (not others[number].work, number))
    most = max(len(load.members) for load in others.values())
    if len(here.members) > 1:
        return target if len(here.members) >= most else None
    if others[target].work and not here.work:
        return target
    if most > 1 or not others[target].waiting:
        # A cell with two or more gives one.
        return None
    # There are fewer replicas than cells. One that has no line gives way, so that cells are served in turn.
    giving = {number: load for number, load in {**others, own: here}.items() if load.members and not load.waiting}
    least = min(giving, key=lambda number: (_pressure(giving[number].work, giving[number].room), number), default=None)
    return target if least == own else None


def _away(replica_id: str, cells: Sequence[CellLoad | None]) -> int | None:
    """Return a cell for a replica whose own does not answer."""
    return first_cell(replica_id, cells) if any(load is not None and not load.former for load in cells) else None


def _after(others: dict[int, CellLoad], least: int) -> int:
    """Return the cell for a replica of one that takes nothing more: one without replicas, else where it is needed."""
    bare = [number for number, load in others.items() if not load.members]
    busiest = max(others, key=lambda number: (_pressure(others[number].work, others[number].room), -number))
    return bare[0] if bare else busiest if others[busiest].work > others[busiest].room else least


def _pressure(work: int, room: int) -> float:
    return work / room if room > 0 else float("inf") if work else 0.0
