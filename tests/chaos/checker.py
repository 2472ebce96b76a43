"""Asserts the invariants over a history. Pure.

I1 each accepted request ends in exactly one terminal state, visible to its client within its deadline
I2 no token of a stream that ends OK is lost, repeated, reordered or wrong
I3 at most one engine decodes a request at a time, beyond one lease
I4 no bytes of one request reach another
I5 leases, slots, entries and calls are gone when nobody asks for anything
I6 the queue's bound holds, no replica decodes more than its window, and shares hold
I7 recovery takes no longer than stated, and only stated errors occur
I8 every fault is proven to have happened
I9 GPU time of requests, idle time, starts, drains and losses add up to the replicas' time
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from penstock.client.explain import UNREACHABLE
from tests.chaos.history import (
    Attempted,
    Cancelled,
    Decode,
    Event,
    Failed,
    Finished,
    History,
    Request,
    Tokens,
)

EPSILON_S = 2.0
"""How much later than its deadline a client may learn of its end."""
LEAST_GAPS = 50
PACE_SLACK_S = 0.1
"""A busy machine's hiccups."""
FOREIGN_TOKENS = 6
"""So many tokens in a row of another request's output are no chance."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a scenario states; everything not stated is forbidden."""

    lease_s: float = 1.5
    max_running: int = 16
    """Sequences per replica."""
    max_waiting: int = 100_000
    max_decodes: int = 1
    """Executions of one request, over the whole run."""
    recovery_s: float | None = None
    """From the last heal, or the first fault where nothing heals, until no client is disturbed any more; None states
    nothing."""
    stall_s: float = 1.0
    """A client that hears nothing for so long is disturbed."""
    silence_s: float | None = None
    """Longest time in which a client with an open request hears nothing, also while something is broken; None states
    nothing."""
    final_codes: frozenset[str] = frozenset()
    """Codes with which requests may end."""
    call_codes: frozenset[str] = frozenset()
    """Codes with which calls may end whose request goes on."""
    fail_fast_s: float | None = None
    """Longest time from a call to its failure; None states nothing."""
    retry_info: bool = False
    """Every UNAVAILABLE that a router said itself names when to come again."""
    min_finished: int = 1
    exact: bool = True
    """Every stream that ends OK says that it is what an undisturbed run had given."""
    max_deaths: int | None = None
    """Engines that may die; None states nothing."""
    killers_end: tuple[str, str] = ("", "")
    """Code and reason with which requests that kill engines must end."""
    pace_ratio: float | None = None
    """Most by which the 99th percentile of the time between two outputs may grow once something is broken."""
    unexplained: float | None = None
    """Largest part of the replicas' time that no kind explains; None states nothing. Something must also be lost."""
    min_share: dict[str, float] = field(default_factory=dict)
    """Tenant to the least part of all output that it gets."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant."""

    invariant: str
    detail: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.detail}"


def check(history: History, bounds: Bounds) -> list[Violation]:
    """Return everything that is wrong, at most a few examples of each kind."""
    rules = (
        _one_end(history, bounds),
        _whole_streams(history, bounds),
        _one_engine(history, bounds),
        _no_mixing(history),
        _nothing_left(history),
        _queue_bounds(history, bounds),
        _recovery(history, bounds),
        _silence_bound(history, bounds),
        _pace(history, bounds),
        _stated_errors(history, bounds),
        _killers(history, bounds),
        _proofs(history),
        _conserved(history, bounds),
    )
    return [Violation(name, detail) for rule in rules for name, detail in _few(rule)]


def check_requests(history: History, bounds: Bounds) -> list[Violation]:
    """Return what is wrong with requests that are through, as their clients saw it."""
    rules = (
        _one_end(history, replace(bounds, min_finished=0)),
        _whole_streams(history, bounds),
        _no_mixing(history),
        _stated_errors(history, bounds),
    )
    return [Violation(name, detail) for rule in rules for name, detail in rule]


def check_engines(history: History, bounds: Bounds) -> list[Violation]:
    """Return what is wrong with what engines did, and with what was left."""
    rules = (_one_engine(history, bounds), _nothing_left(history), _queue_bounds(history, bounds))
    return [Violation(name, detail) for rule in rules for name, detail in _few(rule)]


def _few(found: Iterator[tuple[str, str]], limit: int = 3) -> list[tuple[str, str]]:
    everything = list(found)
    if len(everything) <= limit:
        return everything
    return [*everything[:limit], (everything[0][0], f"and {len(everything) - limit} more")]


def _one_end(history: History, bounds: Bounds) -> Iterator[tuple[str, str]]:
    finished = 0
    for request in history.requests:
        ends = [e for e in request.events if isinstance(e, Finished | Cancelled) or (isinstance(e, Failed) and e.final)]
        finished += request.finished
        if not ends:
            yield "I1", f"{request.name} never ended"
        elif len(ends) > 1 or request.events[-1] is not ends[0]:
            yield "I1", f"{request.name} went on after its end"
        elif (took := history.running_s(request.sent_at, ends[0].at)) > request.deadline_s + EPSILON_S:
            yield "I1", f"{request.name} ended {took:.1f} s after it was sent"
    if finished < bounds.min_finished:
        yield "I1", f"{finished} requests ended OK, at least {bounds.min_finished} must"


def _whole_streams(history: History, bounds: Bounds) -> Iterator[tuple[str, str]]:
    for request in history.requests:
        have = 0
        for event in request.events:
            if isinstance(event, Attempted) and event.restart:
                have = 0
            elif isinstance(event, Tokens):
                if event.offset != have:
                    what = "lost" if event.offset > have else "repeated"
                    yield "I2", f"{request.name} {what} tokens: had {have}, got offset {event.offset}"
                    break
                if event.ids != request.golden[have : have + len(event.ids)]:
                    yield "I2", f"{request.name} got wrong tokens at offset {have}"
                    break
                have += len(event.ids)
            elif isinstance(event, Finished):
                if (have, event.output_tokens) != (len(request.golden), len(request.golden)):
                    counts = f"{have} of {len(request.golden)} tokens, usage says {event.output_tokens}"
                    yield "I2", f"{request.name} ended OK with {counts}"
                elif bounds.exact and not event.exact:
                    yield "I2", f"{request.name} says that its output is not exact"


def _one_engine(history: History, bounds: Bounds) -> Iterator[tuple[str, str]]:
    by_request: dict[str, list[Decode]] = defaultdict(list)
    for decode in history.decodes:
        by_request[decode.request_id].append(decode)
    for request_id, decodes in by_request.items():
        if len(decodes) > bounds.max_decodes:
            told = "; ".join(_told(decode, history) for decode in sorted(decodes, key=lambda decode: decode.began_at))
            times = f"{len(decodes)} times, at most {bounds.max_decodes} are stated"
            yield "I3", f"{request_id} was decoded {times}: {told}"
        spans = [(part, decode) for decode in decodes for part in _awake(decode, history)]
        for index, ((began, ended), one) in enumerate(spans):
            for (other_began, other_ended), other in spans[index + 1 :]:
                since, until = max(began, other_began), min(ended, other_ended)
                both = history.running_s(since, until) if until > since else 0.0
                if one is not other and both > bounds.lease_s:
                    yield (
                        "I3",
                        f"{request_id} was decoded by {one.replica} and {other.replica} at once for {both:.1f} s",
                    )


def _told(decode: Decode, history: History) -> str:
    """Say where and when something was decoded, in seconds after the first fault, and why it ended."""
    zero = min((fault.at for fault in history.faults), default=0.0)
    times = f"{decode.began_at - zero:+.2f} to {decode.ended_at - zero:+.2f} s"
    return f"{decode.attempt} on {decode.replica} from token {decode.prior}, {times}, {decode.reason}"


def _awake(decode: Decode, history: History) -> list[tuple[float, float]]:
    """Cut the times in which its process was stopped out of a decode."""
    parts, began = [], decode.began_at
    for stopped, went_on in sorted(history.pauses.get(decode.replica, ())):
        if stopped > began:
            parts.append((began, min(stopped, decode.ended_at)))
        began = max(began, went_on)
    if began < decode.ended_at:
        parts.append((began, decode.ended_at))
    return parts


def _no_mixing(history: History) -> Iterator[tuple[str, str]]:
    owners: dict[str, str] = {}
    for request in history.requests:
        for request_id in request.ids:
            if (other := owners.setdefault(request_id, request.name)) != request.name:
                yield "I4", f"{request.name} and {other} were both told that they are {request_id}"
    strangers = [(request, got) for request in history.requests if (got := _unexpected(request))]
    if not strangers:
        return
    runs = {run: request for request in history.requests for run in _runs(request.golden)}
    for request, got in strangers:
        owner = next((runs[run] for run in _runs(got) if run in runs and run not in _runs(request.golden)), None)
        if owner is not None:
            yield "I4", f"{request.name} got output of {owner.name}"


def _unexpected(request: Request) -> tuple[int, ...]:
    """Return all output of a request that got wrong tokens."""
    events = [event for event in request.events if isinstance(event, Tokens)]
    if all(event.ids == request.golden[event.offset : event.offset + len(event.ids)] for event in events):
        return ()
    return tuple(token for event in events for token in event.ids)


def _runs(ids: tuple[int, ...]) -> set[tuple[int, ...]]:
    return {ids[at : at + FOREIGN_TOKENS] for at in range(len(ids) - FOREIGN_TOKENS + 1)}


def _nothing_left(history: History) -> Iterator[tuple[str, str]]:
    idle = history.idle
    if idle is None:
        yield "I5", "nobody looked at what was left"
    elif not idle.clean:
        left = [f"{count} in {key}" for key, count in idle.keys.items()]
        left += [f"{count:g} open calls on {router}" for router, count in idle.open_calls.items() if count]
        left += [f"{sequence} still decoding" for sequence in idle.decoding[:3]]
        yield "I5", "left when idle: " + ", ".join(left)


def _queue_bounds(history: History, bounds: Bounds) -> Iterator[tuple[str, str]]:
    worst = max((sample.waiting for sample in history.samples), default=0)
    if worst > bounds.max_waiting:
        yield "I6", f"{worst} requests waited, at most {bounds.max_waiting} may"
    for replica in {decode.replica for decode in history.decodes}:
        most = _most_at_once([d for d in history.decodes if d.replica == replica])
        if most > bounds.max_running:
            yield "I6", f"{replica} decoded {most} sequences at once, its window is {bounds.max_running}"
    output: dict[str, int] = defaultdict(int)
    for request in history.requests:
        output[request.tenant] += sum(len(e.ids) for e in request.events if isinstance(e, Tokens))
    for tenant, share in bounds.min_share.items():
        got = output[tenant] / max(1, sum(output.values()))
        if got < share:
            yield "I6", f"tenant {tenant} got {got:.0%} of the output, at least {share:.0%} is its due"


def _most_at_once(decodes: list[Decode]) -> int:
    # An end frees its slot before a start at the same moment takes it.
    changes = sorted([(d.began_at, 1) for d in decodes] + [(d.ended_at, -1) for d in decodes])
    most = now = 0
    for _at, change in changes:
        now += change
        most = max(most, now)
    return most


def silences(request: Request) -> Iterator[tuple[float, Event]]:
    """Give each event that brings its client further, and when it had heard of the one before."""
    heard_at = request.sent_at
    for event in request.events[1:]:
        if not isinstance(event, Attempted) and not (isinstance(event, Failed) and not event.final):
            yield heard_at, event
            heard_at = event.at


def disturbances(history: History, request: Request, stall_s: float) -> list[tuple[float, float]]:
    """List when a client got nowhere: long silences, and the one before it gave up. A call that fails at once, and the
    next one gets on, is none.
    """
    return [
        (heard_at, event.at)
        for heard_at, event in silences(request)
        if isinstance(event, Failed) or history.running_s(heard_at, event.at) > stall_s
    ]


def longest_silence_s(history: History) -> float:
    """Return the longest time in which a client with an open request heard nothing."""
    gaps = (history.running_s(heard_at, event.at) for r in history.requests for heard_at, event in silences(r))
    return max(gaps, default=0.0)


def recovery_s(history: History, stall_s: float) -> float | None:
    """Return how long clients were disturbed after the last heal, or after the first fault where nothing heals; None
    without a fault.
    """
    if not history.faults:
        return None
    heals = [fault.at for fault in history.faults if fault.heals]
    since = max(heals) if heals else history.faults[0].at
    ends = [end for request in history.requests for _, end in disturbances(history, request, stall_s)]
    return history.running_s(since, max(since, *ends)) if ends else 0.0


def _recovery(history: History, bounds: Bounds) -> Iterator[tuple[str, str]]:
    took = recovery_s(history, bounds.stall_s)
    if bounds.recovery_s is not None and took is not None and took > bounds.recovery_s:
        spans = [(*span, r.name) for r in history.requests for span in disturbances(history, r, bounds.stall_s)]
        began, end, name = max(spans, key=lambda span: span[1])
        silent_s = history.running_s(began, end)
        what = f"{name} was the last, without news for {silent_s:.1f} s"
        yield "I7", f"clients were disturbed for {took:.1f} s, {bounds.recovery_s:.1f} s are stated: {what}"


def _silence_bound(history: History, bounds: Bounds) -> Iterator[tuple[str, str]]:
    if bounds.silence_s is not None and (longest := longest_silence_s(history)) > bounds.silence_s:
        yield "I7", f"a client heard nothing for {longest:.1f} s, {bounds.silence_s:.1f} s are stated"


def pace_s(history: History) -> tuple[float, float] | None:
    """Return the 99th percentile of the time between two outputs of a stream, before the first fault and from then on;
    None where either is unknown.
    """
    if not history.faults:
        return None
    broken_at, before, after = history.faults[0].at, list[float](), list[float]()
    for request in history.requests:
        outputs = [event.at for event in request.events if isinstance(event, Tokens)]
        for one, other in itertools.pairwise(outputs):
            (before if other < broken_at else after).append(history.running_s(one, other))
    if min(len(before), len(after)) < LEAST_GAPS:
        return None
    return _p99(before), _p99(after)


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def _pace(history: History, bounds: Bounds) -> Iterator[tuple[str, str]]:
    if bounds.pace_ratio is None or (pace := pace_s(history)) is None:
        return
    before, after = pace
    if after > before * bounds.pace_ratio + PACE_SLACK_S:
        yield "I7", f"outputs came {after * 1e3:.0f} ms apart at p99, {before * 1e3:.0f} ms before the fault"


def _stated_errors(history: History, bounds: Bounds) -> Iterator[tuple[str, str]]:
    for request in history.requests:
        called_at = request.sent_at
        for event in request.events:
            if isinstance(event, Attempted):
                called_at = event.at
            if not isinstance(event, Failed):
                continue
            stated = bounds.final_codes if event.final else bounds.call_codes | bounds.final_codes
            if event.code not in stated:
                end = "ended" if event.final else "had a call that ended"
                yield "I7", f"{request.name} {end} with {event.code} {event.reason}"
            took = _silence(history, request, event, called_at)
            if bounds.fail_fast_s is not None and took > bounds.fail_fast_s:
                yield "I7", f"{request.name} heard of its failure after {took:.1f} s, {bounds.fail_fast_s} s are stated"
            # No router said so where none was reached.
            told = event.code == "UNAVAILABLE" and event.reason not in ("", UNREACHABLE)
            if bounds.retry_info and told and event.retry_after_s is None:
                yield "I7", f"{request.name} was told UNAVAILABLE {event.reason} without RetryInfo"


def _silence(history: History, request: Request, failure: Failed, called_at: float) -> float:
    """Return how long the client had heard nothing when it was told of the failure."""
    before = max(event.at for event in request.events if event.at <= failure.at and event is not failure)
    return history.running_s(max(before, called_at), failure.at)


def _killers(history: History, bounds: Bounds) -> Iterator[tuple[str, str]]:
    if bounds.max_deaths is not None and history.deaths > bounds.max_deaths:
        yield "I7", f"{history.deaths} engines died, at most {bounds.max_deaths} may"
    for end in history.killers:
        if (end.code, end.reason) != bounds.killers_end:
            yield (
                "I7",
                f"a request that kills engines ended {end.code} {end.reason}, not {' '.join(bounds.killers_end)}",
            )


def _conserved(history: History, bounds: Bounds) -> Iterator[tuple[str, str]]:
    if bounds.unexplained is None:
        return
    if (bill := history.bill) is None or min(bill.requests, bill.lost) <= 0:
        yield "I9", f"nothing shows what requests used and what was lost: {bill}"
    elif abs(bill.explained - bill.total) > bounds.unexplained * bill.total:
        yield "I9", f"{bill.explained:.2f} of {bill.total:.2f} GPU-seconds are explained"


def _proofs(history: History) -> Iterator[tuple[str, str]]:
    for fault in history.faults:
        if not fault.proof:
            yield "I8", f"nothing shows that this happened: {fault.name}"
