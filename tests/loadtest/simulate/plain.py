"""A replica that does one step after the other with the plain scheduler: what the fast one must equal."""

from __future__ import annotations

from dataclasses import dataclass, field

from deployments.engines.sim import CoreLimits
from loadtest.simulate.engine.steps import StepTimes
from tests.deployments.engines.sim.plain_core import PlainCore


@dataclass
class Seen:
    tokens: list[float] = field(default_factory=list)
    """When each came."""
    preemptions: int = 0
    ended: bool = False


@dataclass
class Call:
    """Something that comes from outside."""

    at: float
    kind: str
    """add, abort, limit"""
    name: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    limit: int = 0
    hashes: tuple[int, ...] = ()


def plain_run(limits: CoreLimits, times: StepTimes, calls: list[Call]) -> dict[str, Seen]:
    core, seen, left = PlainCore(limits), {}, list(calls)
    wanted: dict[str, int] = {}
    aborting: list[str] = []
    now = 0.0
    while left or core.running or core.waiting:
        if not core.running and not core.waiting:
            now = max(now, left[0].at)
        # What comes at the very end of a step is in time for the next.
        while left and left[0].at <= now:
            _call(core, left.pop(0), seen, wanted, aborting)
        if not core.running and not core.waiting:
            continue
        step = core.step()
        for name in step.preempted:
            seen[name].preemptions += 1
        now += times.one(step.tokens, step.kv_tokens)
        while left and left[0].at < now:
            _call(core, left.pop(0), seen, wanted, aborting)
        for name in step.produced:
            seen[name].tokens.append(now)
            if len(seen[name].tokens) == wanted[name]:
                seen[name].ended = True
                core.remove(name)
        for name in aborting:
            core.remove(name)
        aborting.clear()
    return seen


def _call(core: PlainCore, call: Call, seen: dict[str, Seen], wanted: dict[str, int], aborting: list[str]) -> None:
    if call.kind == "add":
        seen[call.name] = Seen()
        wanted[call.name] = call.output_tokens
        core.add(call.name, call.prompt_tokens, call.hashes)
    elif call.kind == "abort":
        aborting.append(call.name)
    else:
        core.set_limits(call.limit, None)
