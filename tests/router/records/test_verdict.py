"""What the records of a request say about why it was slow."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.v1 import records_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.wire import duration_to_wire
from router.records.causes import Cause
from router.records.pace import ENOUGH, Paces
from router.records.verdict import explain

STANDARD = types.REQUEST_CLASS_STANDARD


def attempt(granted: float, first: float, end: float, **fields: Any) -> api.AttemptRecord:
    """Describe an attempt of 101 tokens; usually a token takes 10 ms, and a prefill 100 ms."""
    usual = {"usual_prefill": 0.1, "usual_itl": 0.01, "lone_itl": 0.01, "waits_from": 0.0}
    times = {"granted_at": granted, "first_token_at": first, "ended_at": end}
    durations = {**usual, **times, **{name: fields.pop(name) for name in ("lost_time", "usual_itl") if name in fields}}
    plain = {"replica_id": "r1", "output_tokens": 101, "outcome": api.ATTEMPT_OUTCOME_COMPLETED, **fields}
    return api.AttemptRecord(**plain, **{name: duration_to_wire(seconds) for name, seconds in durations.items()})


def record(*attempts: api.AttemptRecord, total: float, waits: Any = (), **fields: Any) -> api.RequestRecord:
    about = {name: fields.pop(name) for name in ("ahead", "holders", "full_window") if name in fields}
    choice = api.ChoiceRecord(prompt_tokens=50, output_tokens=101, attempts=attempts, **about)
    for reason, seconds in waits:
        choice.waits.append(api.WaitPart(reason=reason, time=duration_to_wire(seconds)))
    plain = {"pool": "demo", "tenant": "acme", "request_class": STANDARD, "router_id": "router-1", **fields}
    return api.RequestRecord(**plain, total_time=duration_to_wire(total), choices=[choice])


PROMPT = attempt(0.0, 0.1, 1.1)


def test_a_request_that_took_what_it_needs_has_no_cause() -> None:
    found = explain([record(PROMPT, total=1.1, usual_output_tokens=100)])
    assert (Cause.NONE, "It took 1.1 s, which is usual for such a request.") == (found.cause, found.summary)


def test_the_longest_excess_is_the_cause_with_its_numbers() -> None:
    ahead = [api.LineAhead(request_class=STANDARD, tenant="noisy", waiting=40)]
    waits = [(api.WAIT_REASON_TENANTS, 3.0), (api.WAIT_REASON_NO_ROOM, 1.0)]
    found = explain([record(attempt(4.0, 4.1, 5.1), total=5.1, waits=waits, ahead=ahead)])

    assert Cause.OTHER_TENANTS == found.cause
    assert "Waited 3.0 s of 5.1 s because 40 requests of tenant noisy were ahead of it." == found.summary


def test_who_may_not_know_other_tenants_reads_no_name() -> None:
    holders = [api.SlotHolder(request_class=STANDARD, tenant="noisy", share=0.9)]
    call = record(attempt(4.0, 4.1, 5.1), total=5.1, waits=[(api.WAIT_REASON_NO_ROOM, 4.0)], holders=holders)

    assert "tenant noisy held 90% of the slots" in explain([call]).summary
    assert "Waited 4.0 s of 5.1 s because requests of another tenant held 90% of the slots." == (
        explain([call], names=False).summary
    )


def test_a_quota_counts_from_the_first_refusal() -> None:
    refused = api.EarlierRefusals(
        times=3, time=duration_to_wire(8.2), reason="QUOTA_EXCEEDED", quota="tokens_per_minute", limit=1000
    )
    found = explain([record(PROMPT, total=1.1, refused=refused)])

    assert Cause.QUOTA == found.cause
    assert "Waited 8.2 s of 9.3 s because tenant acme had used its 1,000 tokens per minute (refused 3 times)." == (
        found.summary
    )


def test_a_budget_is_named_by_its_period() -> None:
    refused = api.EarlierRefusals(times=1, time=duration_to_wire(9), reason="QUOTA_EXCEEDED", quota="cost_per_day")
    found = explain([record(PROMPT, total=1.0, refused=refused)])
    assert "Waited 9.0 s of 10.0 s because tenant acme had used its budget of the day (refused once)." == found.summary


def test_what_a_lost_replica_cost_is_the_silence_the_second_wait_and_the_second_prefill() -> None:
    lost = attempt(0.0, 0.1, 2.0, outcome=api.ATTEMPT_OUTCOME_LOST, failure="stalled", lost_time=1.0, output_tokens=91)
    again = attempt(3.0, 3.5, 4.5, replica_id="r2")
    again.waits_from.CopyFrom(duration_to_wire(2.0))
    found = explain([record(lost, again, total=4.5, waits=[(api.WAIT_REASON_NO_ROOM, 1.0)])])

    assert Cause.REPLICA_LOST == found.cause
    assert "Spent 2.5 s of 4.5 s because replica r1 was lost after 91 tokens (it sent nothing more)." == found.summary


@pytest.mark.parametrize(
    ("usual_itl", "expected"), [(0.03, Cause.LARGE_BATCH), (0.01, Cause.SLOW_ENGINE)], ids=["usual", "unusual"]
)
def test_slow_tokens_are_the_batchs_or_the_engines_fault(usual_itl: float, expected: Cause) -> None:
    load = api.ReplicaLoad(running=20, batch_limit=64)
    slow = attempt(0.0, 0.1, 3.1, usual_itl=usual_itl, load_at_grant=load)
    slo = api.SloRecord(itl=duration_to_wire(0.02), outcome="itl")
    assert expected == explain([record(slow, total=3.1, slo=slo)]).cause


def test_only_what_made_it_miss_its_slo_counts() -> None:
    """It waited longer than its client took to read, but it was its first token that came in time."""
    load = api.ReplicaLoad(running=20, batch_limit=64)
    call = record(
        attempt(2.0, 2.1, 4.1, usual_itl=0.02, load_at_grant=load), total=4.1, waits=[(api.WAIT_REASON_NO_ROOM, 2.0)]
    )
    assert Cause.NO_ROOM == explain([call]).cause
    call.slo.outcome = "itl"
    assert Cause.LARGE_BATCH == explain([call]).cause


def test_the_time_after_a_router_died_is_that_without_its_tokens() -> None:
    call = record(attempt(0.0, 0.01, 0.5), total=0.5, resumed=True, earlier_tokens=100)
    call.after_first_call.CopyFrom(duration_to_wire(4.0))
    found = explain([call])
    assert Cause.ROUTER_LOST == found.cause
    assert found.summary.startswith("Waited 3.0 s of 4.5 s because the router of its first call was lost")


def test_a_client_that_came_back_late_is_the_cause_unless_its_tokens_were_made_meanwhile() -> None:
    first, second = record(PROMPT, total=1.0, arrived_at_ms=0), record(PROMPT, total=0.5, arrived_at_ms=6_000)
    second.resumed = True
    assert Cause.CLIENT_AWAY == explain([first, second]).cause
    second.usage.output_tokens = 500
    assert Cause.CLIENT_AWAY != explain([first, second]).cause


def test_the_causes_time_never_exceeds_the_whole() -> None:
    """Waits after a lost attempt count once, to the loss."""
    lost = attempt(1.0, 1.1, 1.5, outcome=api.ATTEMPT_OUTCOME_LOST, failure="link", lost_time=0.2, output_tokens=10)
    again = attempt(3.0, 3.1, 3.6)
    again.waits_from.CopyFrom(duration_to_wire(1.5))
    waits = [(api.WAIT_REASON_OWN_TENANT, 1.0), (api.WAIT_REASON_NO_ROOM, 1.5)]
    found = explain([record(lost, again, total=3.6, waits=waits)])
    assert (Cause.REPLICA_LOST, True) == (found.cause, found.summary.startswith("Spent 1.8 s of 3.6 s"))


def test_what_is_usual_is_learned_from_requests_and_a_slow_time_does_not_soon_change_it() -> None:
    paces = Paces()
    for seconds in (1.1, 1.1, 1.1, 9.0, 9.0, 9.0, 9.0):
        ran = attempt(0.0, 0.1, seconds)
        for field in ("usual_prefill", "usual_itl", "lone_itl"):
            ran.ClearField(field)
        paces.note(record(ran, total=seconds))
    asked = record(api.AttemptRecord(output_tokens=101), total=1.0)
    paces.note(asked)
    [choice] = asked.choices
    assert 10 == pytest.approx(choice.attempts[0].lone_itl.ToMilliseconds(), abs=1)
    assert 100 == pytest.approx(choice.attempts[0].usual_prefill.ToMilliseconds(), abs=1)
    assert (50, 101) == (asked.usual_prompt_tokens, asked.usual_output_tokens)


def test_with_too_few_requests_nothing_is_usual() -> None:
    paces = Paces()
    for _ in range(ENOUGH - 1):
        paces.note(record(api.AttemptRecord(output_tokens=101), total=1.0))
    asked = record(api.AttemptRecord(output_tokens=101), total=1.0)
    paces.note(asked)
    assert not asked.choices[0].attempts[0].HasField("lone_itl")
