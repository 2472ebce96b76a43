"""Where the time of a request went. Pure: from the records of its calls to parts, cause and one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.v1 import records_pb2 as api
from penstock.wire import duration_from_wire


@dataclass(frozen=True, slots=True)
class Explained:
    """Where the time of a request went."""

    parts: tuple[tuple[str, float], ...]
    """Names and seconds, in order. They add up to the total."""
    cause: str
    summary: str


def explain(calls: Sequence[api.RequestRecord]) -> Explained:
    """Explain the calls of one request; there is at least one."""
    parts = time_parts(calls[-1])
    name, seconds = max(parts, key=lambda part: part[1])
    return Explained(parts, name, f"{seconds:.3g} s of {sum(part for _, part in parts):.3g} s were {name}.")


def time_parts(record: api.RequestRecord) -> tuple[tuple[str, float], ...]:
    """Divide the time of a call among its parts, by the choice that took longest."""
    total_s, admission_s = duration_from_wire(record.total_time), duration_from_wire(record.admission_time)
    delivery_s = duration_from_wire(record.delivery_time)
    queue_s = prefill_s = decode_s = lost_s = 0.0
    if record.choices:
        longest = max(record.choices, key=_ended_at)
        for ran in longest.attempts:
            ended_s, lost = duration_from_wire(ran.ended_at), duration_from_wire(ran.lost_time)
            granted_s = duration_from_wire(ran.granted_at) if ran.HasField("granted_at") else None
            first_s = duration_from_wire(ran.first_token_at) if ran.HasField("first_token_at") else None
            if granted_s is not None:
                queue_s += max(0.0, granted_s - duration_from_wire(ran.waits_from))
                prefill_s += max(0.0, (ended_s - lost if first_s is None else first_s) - granted_s)
            if first_s is not None:
                decode_s += max(0.0, ended_s - lost - first_s)
            lost_s += lost
        if not longest.attempts:
            queue_s = max(0.0, total_s - admission_s)
    known = admission_s + queue_s + prefill_s + decode_s + lost_s + delivery_s
    return (
        ("admission", admission_s),
        ("queue", queue_s),
        ("prefill", prefill_s),
        ("decode", decode_s),
        ("lost", lost_s),
        ("delivery", delivery_s),
        ("other", max(0.0, total_s - known)),
    )


def _ended_at(choice: api.ChoiceRecord) -> float:
    return max((duration_from_wire(ran.ended_at) for ran in choice.attempts), default=0.0)
