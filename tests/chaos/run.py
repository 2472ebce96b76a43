"""Runs a scenario on a cluster and judges it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from redis.exceptions import RedisError

from tests.chaos.bills import bill_since, read_bill
from tests.chaos.checker import Violation, check, longest_silence_s, pace_s, recovery_s
from tests.chaos.cluster import ChaosCluster, ClusterPlan
from tests.chaos.faults import Fault
from tests.chaos.golden import Golden
from tests.chaos.history import Cancelled, Failed, FaultRecord, History, Idle, QueueSample, read_journal
from tests.chaos.keeper import deaths, keep
from tests.chaos.lag import LoopLag
from tests.chaos.load import Clients
from tests.chaos.recorded import record
from tests.chaos.scenario import After, Midway, Scenario, Step
from tests.chaos.told import copy_logs, write_history
from tests.support.waiting import until

PROOF_S = 10.0
"""How long a fault may take to show; a drain is the longest."""
MIDWAY_S = 30.0
"""How long streams may take to get going."""
SAMPLE_S = 0.2
MUST_BE_EMPTY = (
    *("entries", "line", "active:0", "active:1", "active:2", "owners", "slots", "skips", "prefs", "deadlines"),
    *("open_counts", "outstanding"),
)
"""Keys of the queue that hold nothing when nobody asks for anything."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run showed."""

    scenario: Scenario
    violations: tuple[Violation, ...]
    faults: tuple[FaultRecord, ...]
    requests: int
    finished: int
    failed: int
    failed_calls: int
    """Calls that did not end OK, of whatever request."""
    cancelled: int
    """Requests that their clients gave up."""
    recovery_s: float | None
    silence_s: float
    """The longest time that a client heard nothing."""
    pace_s: tuple[float, float] | None
    """Time between two outputs of a stream before the first fault, and from then on (`checker.pace_s`)."""
    lag_s: float
    """The longest time that the loop of clients and proxies stood still; clients saw it as a silence."""
    took_s: float
    history: History = field(repr=False)
    control: Outcome | None = None

    @property
    def verdict(self) -> str:
        """Sum up: held, BROKEN, expected (to fail, and it did), UNEXPECTED (it holds by now), or BLIND (the control run
        broke nothing).
        """
        if self.control is not None:
            control = self.scenario.control
            broken = {violation.invariant for violation in self.control.violations}
            if control is not None and not broken & control.breaks:
                return "BLIND"
        if self.scenario.expected_failure:
            return "expected" if self.violations else "UNEXPECTED"
        return "BROKEN" if self.violations else "held"

    @property
    def good(self) -> bool:
        """Whether everything is as it should be."""
        return self.verdict in ("held", "expected")


@contextlib.asynccontextmanager
async def running_cluster(plan: ClusterPlan, logs: Path | None = None) -> AsyncIterator[ChaosCluster]:
    """Run a cluster in a folder of its own. `logs` is a folder for copies of its processes' logs."""
    with TemporaryDirectory(prefix="penstock-chaos-") as name:
        cluster = ChaosCluster(Path(name), plan)
        try:
            await cluster.start()
            yield cluster
        finally:
            await cluster.close()
            if logs is not None:
                copy_logs(Path(name), logs)


async def run_alone(scenario: Scenario, *, control: bool = True, logs: Path | None = None) -> Outcome:
    """Run a scenario, and its control run, each on a new cluster. Processes' logs and what clients saw are copied to a
    folder of the scenario's name in `logs`.
    """
    outcome = await _run_anew(scenario, logs)
    if not control or scenario.control is None:
        return outcome
    return with_control(outcome, await _run_anew(scenario.uncontrolled(), logs))


async def _run_anew(scenario: Scenario, logs: Path | None) -> Outcome:
    folder = None if logs is None else logs / scenario.name.replace(" ", "-")
    async with running_cluster(scenario.plan, folder) as cluster:
        outcome = await run_on(cluster, scenario)
    if folder is not None:
        write_history(outcome.history, folder / "history.jsonl")
    return outcome


async def run_in_turns(scenarios: Sequence[Scenario], *, control: bool = True) -> AsyncIterator[Outcome]:
    """Run scenarios of one plan one after the other on one cluster, control runs of that plan too: real engines take
    long to start.
    """
    async with running_cluster(scenarios[0].plan) as cluster:
        for scenario in scenarios:
            outcome = await run_on(cluster, scenario)
            if control and scenario.control is not None and (other := scenario.uncontrolled()).plan == scenario.plan:
                outcome = with_control(outcome, await run_on(cluster, other))
            yield outcome


def with_control(outcome: Outcome, control: Outcome) -> Outcome:
    """Put a scenario and its control run together."""
    return Outcome(
        **{name: getattr(outcome, name) for name in Outcome.__dataclass_fields__ if name != "control"}, control=control
    )


async def run_on(cluster: ChaosCluster, scenario: Scenario) -> Outcome:
    """Run a scenario on a cluster that is whole; afterwards it is whole again."""
    began = time.monotonic()
    history = History()
    cluster.killers = []
    clients = Clients(scenario.load, cluster.targets, await _golden_of(cluster), history, cluster.http_targets)
    before = None if scenario.bounds.unexplained is None else await read_bill(cluster)
    over = asyncio.Event()
    lag = LoopLag()
    watching = asyncio.gather(_sample(cluster, history, over), keep(cluster, over), lag.watch(over))
    try:
        clients.start()
        for step in scenario.steps:
            await _do(step, cluster, clients, history)
        await asyncio.sleep(scenario.settle_s)
        await clients.stop()
    finally:
        await clients.abort()
        # redis-py may swallow a cancel, so the task is asked.
        over.set()
        await watching
    history.ended_at, history.standstills = time.monotonic(), lag.standstills
    await make_whole(cluster)
    history.idle = await idle(cluster, began, scenario.idle_s)
    history.notes["idle_s"] = time.monotonic() - history.ended_at
    read_engines(cluster, history, began)
    history.deaths, history.killers = deaths(cluster, began), cluster.killers
    if before is not None:
        history.bill = await bill_since(cluster, before)
    found = check(history, scenario.bounds)
    return Outcome(
        scenario,
        tuple(found),
        tuple(history.faults),
        len(history.requests),
        sum(request.finished for request in history.requests),
        sum(isinstance(request.events[-1], Failed) for request in history.requests),
        sum(isinstance(event, Failed) for request in history.requests for event in request.events),
        sum(isinstance(event, Cancelled) for request in history.requests for event in request.events),
        recovery_s(history, scenario.bounds.stall_s),
        longest_silence_s(history),
        pace_s(history),
        lag.longest_s,
        time.monotonic() - began,
        history,
    )


async def _golden_of(cluster: ChaosCluster) -> Golden:
    if cluster.golden is None:
        cluster.golden = await record(cluster.targets) if cluster.plan.real else Golden()
    return cluster.golden if cluster.plan.real else Golden()


async def _do(step: Step, cluster: ChaosCluster, clients: Clients, history: History) -> None:
    match step.when:
        case After(seconds):
            await asyncio.sleep(seconds)
        case Midway(streams):
            await until(lambda: clients.midway() >= streams, MIDWAY_S)
    await apply(step.fault, cluster, history)


async def apply(fault: Fault, cluster: ChaosCluster, history: History) -> None:
    """Break or mend something, and note what shows it."""
    at = time.monotonic()
    await fault.apply(cluster)
    if fault.heals:
        at = time.monotonic()
    cluster.doubt = ""
    proof, deadline = "", time.monotonic() + PROOF_S
    while not proof and time.monotonic() < deadline:
        with contextlib.suppress(RedisError, OSError, psutil.Error):
            proof = await fault.proof(cluster)
        await asyncio.sleep(0.02)
    doubt = f" (found: {cluster.doubt})" if cluster.doubt and not proof else ""
    history.faults.append(FaultRecord(describe(fault) + doubt, at, proof, fault.heals))


def describe(fault: object) -> str:
    """Name a fault in a few words."""
    words = [type(fault).__name__.lower()]
    for each in fields(fault):  # type: ignore[arg-type]  # every fault is a dataclass
        value = getattr(fault, each.name)
        if each.name not in ("heals", "error"):
            words.append(str(value))
    return " ".join(words)


async def _sample(cluster: ChaosCluster, history: History, over: asyncio.Event) -> None:
    while not over.is_set():
        with contextlib.suppress(RedisError, OSError):
            waiting = (await cluster.sizes()).get("line", 0)
            history.samples.append(QueueSample(time.monotonic(), waiting))
        await asyncio.sleep(SAMPLE_S)


async def make_whole(cluster: ChaosCluster) -> None:
    """Mend everything; when it returns the cluster is as it was at the start."""
    for proxy in cluster.proxies.values():
        await proxy.heal()
    for name, node in list(cluster.nodes.items()):
        if node.paused and node.paused[-1][1] == float("inf"):
            cluster.resume(name)
    for name, node in sorted(cluster.nodes.items(), key=lambda item: not item[0].startswith("redis")):
        if not node.running:
            await cluster.start_node(name)
    await cluster.linked()


async def idle(cluster: ChaosCluster, began: float, seconds: float, besides: Collection[str] = ()) -> Idle:
    """Look until nothing is left, at most for some seconds. `besides`: further keys that must be empty.

    What engines noted is read last and in a thread: after many minutes that takes seconds, and the proxies that the
    cluster's heartbeats go through live on this loop.
    """
    deadline = time.monotonic() + seconds
    empty = {*MUST_BE_EMPTY, *besides}
    while True:
        keys = {name: size for name, size in (await cluster.sizes()).items() if name in empty}
        calls = {name: (await cluster.metrics(name))["penstock_router_open_calls"] for name in cluster.routers}
        found = Idle(keys, calls, [])
        over = time.monotonic() > deadline
        if found.clean or over:
            found = Idle(keys, calls, await asyncio.to_thread(_decoding, cluster, began))
            if found.clean or over:
                return found
        await asyncio.sleep(0.1)


def _decoding(cluster: ChaosCluster, began: float) -> list[str]:
    """Name the sequences that engines have not ended."""
    now = time.monotonic()
    return [
        sequence
        for path, node in cluster.journals().items()
        for sequence in read_journal(path, node.name, began, node.died_at, now)[1]
    ]


def read_engines(cluster: ChaosCluster, history: History, began: float) -> None:
    """Read what engines noted since a moment."""
    for path, node in cluster.journals().items():
        decodes, _still = read_journal(path, node.name, began, node.died_at, time.monotonic())
        history.decodes += decodes
        history.pauses.setdefault(node.name, []).extend(node.paused)
