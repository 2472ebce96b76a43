"""What a call costs as one thing of a pool grows: how many wait, how many tenants or replicas it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import redis.asyncio
from rich.console import Console
from rich.table import Table

from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.queue import cells
from loadtest.benchmarks.queue.cells import CallCost, CallRatios, Ground
from loadtest.benchmarks.queue.meter import Meter

BAR = 1.3
"""How many times as much a call may cost, at most, however many wait."""
WAITING, TENANTS, REPLICAS, ALL = "waiting", "tenants", "replicas", "all three"


@dataclass(frozen=True, slots=True)
class QueueSize:
    """Size of a pool."""

    waiting: int
    replicas: int
    tenants: int


@dataclass(frozen=True, slots=True)
class AxisPoint:
    """A pool that differs from the smallest one in one thing, or in all."""

    axis: str
    size: QueueSize

    @property
    def bar(self) -> float | None:
        """The bound on each ratio; None where there is none."""
        return BAR if self.axis == WAITING else None


@dataclass(frozen=True, slots=True)
class AxisCost:
    """Cost of the calls in such a pool, and its ratios to the smallest pool's of the same rounds."""

    point: AxisPoint
    smallest: CallCost
    cost: CallCost
    ratios: CallRatios

    @property
    def held(self) -> bool:
        """Whether each call keeps the bar."""
        bar = self.point.bar
        return bar is None or max(asdict(self.ratios).values()) <= bar

    def fields(self) -> dict[str, object]:
        """Return the figures for a file."""
        return asdict(self) | {"bar": self.point.bar, "held": self.held}


def points(waiting: Sequence[int], replicas: Sequence[int], tenants: Sequence[int]) -> list[AxisPoint]:
    """Return the pools to compare with the smallest, in an order in which pools of as many tenants only grow."""
    some = [sorted(set(each)) for each in (waiting, replicas, tenants)]
    least = QueueSize(some[0][0], some[1][0], some[2][0])
    found = [AxisPoint(REPLICAS, QueueSize(least.waiting, each, least.tenants)) for each in some[1][1:]]
    found += [AxisPoint(WAITING, QueueSize(each, least.replicas, least.tenants)) for each in some[0][1:]]
    found += [AxisPoint(TENANTS, QueueSize(least.waiting, least.replicas, each)) for each in some[2][1:]]
    largest = QueueSize(some[0][-1], some[1][-1], some[2][-1])
    if sum(len(each) > 1 for each in some) > 1:
        found.append(AxisPoint(ALL, largest))
    return found


class AxisBench:
    """Comparisons on one server."""

    def __init__(self, url: str, client: redis.asyncio.Redis, meter: Meter, console: Console) -> None:
        self._url, self._client, self._meter, self._console = url, client, meter, console

    async def measure(self, some: Sequence[AxisPoint], least: QueueSize, rounds: int = cells.ROUNDS) -> list[AxisCost]:
        """Compare each pool with the smallest one, in turns."""
        small = Ground(self._url, self._client, least.tenants, "small")
        await small.grow(least.waiting)
        found, ground = list[AxisCost](), None
        for point in some:
            size = point.size
            if ground is None or ground.tenants != size.tenants:
                if ground is not None:
                    await ground.clear()
                ground = Ground(self._url, self._client, size.tenants, f"ground-{size.tenants}")
            await load(ground, size.waiting, self._console)
            title = f"{point.axis}: {size.waiting:,} waiting, {size.replicas} replicas, {size.tenants:,} tenants"
            with self._console.status(f"{title}: measuring"):
                async with (
                    small.scene(least.waiting, least.replicas) as one,
                    ground.scene(size.waiting, size.replicas) as other,
                ):
                    costs = await cells.compare(one, other, self._meter, rounds)
            found.append(AxisCost(point, *costs))
            words = ", ".join(f"{name} {ratio:.2f}" for name, ratio in asdict(found[-1].ratios).items())
            self._console.print(f"{title}: {words}", highlight=False)
        if ground is not None:
            await ground.clear()
        await small.clear()
        return found


async def load(ground: Ground, waiting: int, console: Console) -> None:
    """Let so many entries wait in a pool, with a line of progress."""
    with console.status(f"{waiting:,} waiting, {ground.tenants:,} tenants: loading"):
        await ground.grow(waiting)


def show(measured: Sequence[AxisCost], console: Console) -> None:
    """Print the figures, and whether the bar is held."""
    if not measured:
        return
    table = Table(title="CPU of Redis per call, us (in brackets: of the smallest pool's in the same rounds)")
    add_columns(table, "axis", "waiting", "replicas", "tenants", "submit", "fill", "release", words=("axis",))
    add_columns(table, "router beat", "replica beat", "bar", "", words=("",))
    for each in measured:
        size, cost, ratios = each.point.size, each.cost, each.ratios
        bar = each.point.bar
        table.add_row(
            each.point.axis,
            f"{size.waiting:,}",
            f"{size.replicas}",
            f"{size.tenants:,}",
            f"{cost.submit_us:.1f} ({ratios.submit:.2f})",
            f"{cost.fill_us:.1f} ({ratios.fill:.2f})",
            f"{cost.release_us:.1f} ({ratios.release:.2f})",
            f"{cost.router_beat_us:,.0f}",
            f"{cost.replica_beat_us:,.0f}",
            "" if bar is None else f"{bar:g}",
            "" if bar is None else "held" if each.held else "[red]missed[/]",
        )
    print_table(table, console)
