"""Runs mixed load for as long as told, and breaks something every few seconds.

python -m tests.chaos.soak [--minutes N] [--seed N] [--only TEXT] [--json FILE] [--logs FOLDER]

Nothing may be lost, memory must stay flat, and nothing may be left at the end. Router 1 and replica 1 live all the
time, so that their memory can be followed; what ends a process befalls router 0, replica 0 and Redis.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from tests.chaos.checker import Bounds, Violation, check_engines
from tests.chaos.cluster import ChaosCluster, ClusterPlan
from tests.chaos.faults import Continue, Fault, Heal, Kill, Pause, Poison, Reset, Start, Terminate
from tests.chaos.golden import Golden
from tests.chaos.history import History
from tests.chaos.load import Clients, Kind, Load
from tests.chaos.proxy import Toxic
from tests.chaos.redis_faults import Configure, Demote, FlushAll, Promote, Sleep
from tests.chaos.run import apply, idle, make_whole, read_engines, running_cluster
from tests.chaos.tally import Episode, Tally

FOLD_S = 0.5
MEMORY_S = 2.0
IDLE_S = 20.0
"""How long the cluster may take to have nothing left; results are kept for a part of it."""
RESULT_S = 5.0
DEADLINE_S = 40.0
SLOTS = 32
PLAN = ClusterPlan(
    settings={"queue": {"result_s": RESULT_S}},
    sim={"max_num_seqs": SLOTS},
    redis=("--auto-aof-rewrite-min-size", "16mb"),
)
BOUNDS = Bounds(
    call_codes=frozenset({"UNAVAILABLE", "CANCELLED"}),
    min_finished=0,
    max_running=SLOTS,
    max_decodes=8,
    exact=False,
)
LOADS = (
    Load(kind=Kind.UNARY, clients=14, output_tokens=6, deadline_s=DEADLINE_S),
    Load(kind=Kind.SDK, clients=14, output_tokens=10, deadline_s=DEADLINE_S),
    Load(kind=Kind.PLAIN, clients=8, output_tokens=10, deadline_s=DEADLINE_S),
    Load(kind=Kind.FICKLE, clients=8, output_tokens=30, deadline_s=DEADLINE_S),
    Load(kind=Kind.RESUMING, clients=8, output_tokens=50, deadline_s=DEADLINE_S),
    Load(kind=Kind.RESUMING, clients=4, output_tokens=400, prompt_tokens=200, deadline_s=DEADLINE_S),
)
ALSO_EMPTY = ("keys", "key_due", "results", "idle:0", "idle:1", "idle:2", "bells")
"""Beside what is always empty when nobody asks for anything."""


@dataclass(frozen=True, slots=True)
class Move:
    """Something broken and mended again."""

    name: str
    breaks: Fault
    for_s: float = 0.0
    mends: Fault | None = None


MOVES = (
    Move("router killed", Kill("router-0"), 0.5, Start("router-0")),
    Move("router drained", Terminate("router-0"), 0.0, Start("router-0")),
    Move("replica killed", Kill("replica-0"), 2.0, Start("replica-0")),
    Move("replica drained", Terminate("replica-0"), 0.0, Start("replica-0")),
    Move("replica stopped briefly", Pause("replica-1"), 1.0, Continue("replica-1")),
    Move("replica stopped for long", Pause("replica-1"), 6.0, Continue("replica-1")),
    Move("link reset", Reset("router-1>replica-1")),
    Move("link blackholed", Poison("router-0>replica-1", Toxic(blackhole="both")), 2.0, Heal("router-0>replica-1")),
    Move("redis killed", Kill("redis"), 1.0, Start("redis")),
    Move("redis hangs", Sleep(2.0)),
    Move("redis flushed", FlushAll()),
    Move("redis slow", Poison("router-1>redis", Toxic(latency_s=0.1)), 3.0, Heal("router-1>redis")),
    Move("redis cut off", Poison("router-0>redis", Toxic(blackhole="both")), 2.0, Heal("router-0>redis")),
    Move("redis read-only", Demote(), 1.5, Promote()),
    Move("redis full", Configure("maxmemory", "1", error="OOM"), 1.5, Configure("maxmemory", "0", heals=True)),
)


class Soak:
    """One run."""

    def __init__(self, cluster: ChaosCluster, seed: int, console: Console, only: str = "") -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._console = console
        self._moves = [move for move in MOVES if only in move.name]
        self._history = History()
        self.tally = Tally(BOUNDS)
        self.left: dict[str, int] = {}
        """What the queue's keys held at the end."""
        self.idle_s = 0.0
        self.took_s = 0.0

    async def run(self, seconds: float) -> None:
        """Load and break for so long, then let everything come to its end, and look at what is left."""
        began = time.monotonic()
        golden, targets = Golden(), self._cluster.targets
        crowds = [Clients(load, targets, golden, self._history) for load in LOADS]
        over = asyncio.Event()
        keeping = asyncio.create_task(self._keep(over))
        try:
            for crowd in crowds:
                crowd.start()
            while time.monotonic() - began < seconds:
                await self._pause(2.0, 5.0)
                await self._make(self._random.choice(self._moves))
            await asyncio.gather(*(crowd.stop() for crowd in crowds))
        finally:
            await asyncio.gather(*(crowd.abort() for crowd in crowds))
            over.set()
            await keeping
        self.took_s = time.monotonic() - began
        await self._judge(began)

    async def _pause(self, least: float, most: float) -> None:
        await asyncio.sleep(self._random.uniform(least, most))

    async def _make(self, move: Move) -> None:
        self.tally.episodes.append(Episode(move.name, time.monotonic()))
        await apply(move.breaks, self._cluster, self._history)
        if move.mends is not None:
            await asyncio.sleep(move.for_s)
            await apply(move.mends, self._cluster, self._history)
        # One variable at a time: the next fault meets a cluster that is whole.
        await self._cluster.linked()
        self.tally.prove(self._history.faults)

    async def _keep(self, over: asyncio.Event) -> None:
        next_sample, next_word = 0.0, time.monotonic() + 60
        while not over.is_set():
            self.tally.fold(self._history)
            now = time.monotonic()
            if now >= next_sample:
                next_sample = now + MEMORY_S
                await self._sample_memory()
            if now >= next_word:
                next_word = now + 60
                self._tell()
            await asyncio.sleep(FOLD_S)

    async def _sample_memory(self) -> None:
        sizes = {name: size for name, size in self._cluster.memory().items() if name in ("router-1", "replica-1")}
        self.tally.note_memory({**sizes, "clients": psutil.Process().memory_info().rss})

    def _tell(self) -> None:
        tally = self.tally
        text = f"{tally.requests} requests, {tally.faults} faults and mends, {sum(tally.kinds.values())} violations"
        self._console.print(text, highlight=False)

    async def _judge(self, began: float) -> None:
        self.tally.fold(self._history)
        for request in self._history.requests:
            self.tally.blame([Violation("I1", f"{request.name} never ended")])
        await make_whole(self._cluster)
        ended = time.monotonic()
        self._history.idle = await idle(self._cluster, began, IDLE_S, besides=ALSO_EMPTY)
        self.idle_s = time.monotonic() - ended
        self.left = await self._cluster.sizes()
        read_engines(self._cluster, self._history, began)
        self.tally.blame(check_engines(self._history, BOUNDS))
        self.tally.judge_memory()

    # --- telling ------------------------------------------------------------------------------------------------------

    def show(self) -> None:
        """Print what happened."""
        tally = self.tally
        table = Table(title=f"Soak: {self.took_s / 60:.1f} minutes", title_justify="left")
        for name in ("fault", "times", "longest silence", "calls failed"):
            table.add_column(name, justify="left" if name == "fault" else "right")
        for name, times, silence_s, failed in sorted(tally.by_fault()):
            table.add_row(name, str(times), f"{silence_s:.1f} s", str(failed))
        self._console.print(table)
        self._console.print(
            f"{tally.requests} requests ({tally.requests / self.took_s:.0f} per second): {tally.finished} whole, "
            f"{tally.cancelled} cancelled by their clients; {tally.failed_calls} calls failed and were repeated; "
            f"{tally.tokens} tokens compared",
            highlight=False,
        )
        for name, (early, late) in tally.quarters().items():
            self._console.print(f"memory of {name}: {early:.0f} MB in the second quarter, {late:.0f} in the last")
        self._console.print(f"nothing was left {self.idle_s:.1f} s after the last client; keys: {self.left}")
        if tally.kinds:
            self._console.print(f"[red]BROKEN[/]: {dict(tally.kinds)}")
            for violation in tally.violations:
                self._console.print(f"  {violation}", highlight=False, markup=False)

    def as_json(self) -> dict[str, Any]:
        """Return the same for machines."""
        tally = self.tally
        return {
            "minutes": self.took_s / 60,
            "requests": tally.requests,
            "finished": tally.finished,
            "cancelled": tally.cancelled,
            "failed_calls": tally.failed_calls,
            "tokens": tally.tokens,
            "faults": [
                {"name": name, "times": times, "silence_s": silence_s, "failed_calls": failed}
                for name, times, silence_s, failed in tally.by_fault()
            ],
            "memory_mb": tally.quarters(),
            "idle_s": self.idle_s,
            "left": self.left,
            "broken": dict(tally.kinds),
            "violations": [str(violation) for violation in tally.violations],
        }


async def soak(options: argparse.Namespace, console: Console) -> Soak:
    """Run on a cluster of its own."""
    async with running_cluster(PLAN) as cluster:
        run = Soak(cluster, options.seed, console, options.only)
        try:
            await run.run(options.minutes * 60)
        finally:
            logs: Path | None = options.logs
            for path in cluster.folder.glob("*.log") if logs is not None else ():
                shutil.copy(path, str(logs))
        return run


def main() -> int:
    """Run; 0 when nothing was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description="Mixed load with random faults.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the outcome here too")
    parser.add_argument("--logs", type=Path, help="keep the processes' logs in this folder")
    parser.add_argument("--only", default="", help="break only what has this text in its name")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    run = asyncio.run(soak(options, console))
    run.show()
    if options.json is not None:
        options.json.write_text(json.dumps(run.as_json(), indent=1), encoding="utf-8")
    return 1 if run.tally.kinds else 0


if __name__ == "__main__":
    sys.exit(main())
