"""What tenants announce counts by how much of it came before, and never for more than they said."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from cluster.announced.arrivals import Arrivals, TenantCounts
from cluster.announced.belief import MOST_TENANTS, Announced, Belief, BeliefRules, TenantBelief
from cluster.announced.load import AnnouncedLoad
from cluster.announced.stored import belief_values, read_belief
from cluster.control.step_model import Shape
from cluster.forecast.announced import AnnouncedRise, AnnouncedWork

RULES = BeliefRules()
COLD_S = 180.0
USUAL = Shape(prompt_tokens=100, output_tokens=100)
TICK_S = 15.0


def load(
    start_s: float, end_s: float, rate: float, tenant: str = "acme", name: str = "a", **other: float
) -> AnnouncedLoad:
    return AnnouncedLoad(name, tenant, round(start_s * 1000), round(end_s * 1000), requests=rate, **other)


def at(now: float, loads: Sequence[AnnouncedLoad]) -> Announced:
    """Return a moment of a pool in which a token takes a thousandth of a replica's second."""
    return Announced(now, loads, USUAL, lambda shape: shape.peak_tokens / 1000)


def come(
    loads: Sequence[AnnouncedLoad], rate: float, until: float, belief: Belief | None = None, tenant: str = "acme"
) -> Belief:
    """Let a tenant send so many requests per second, from 0 on or from the last look of the belief."""
    belief = belief or Belief()
    now = belief.arrivals.at or 0.0
    counted = belief.arrivals.counters.get("router", {}).get(tenant, TenantCounts()).requests
    while now < until:
        now += TICK_S
        counted += rate * TICK_S
        counts = TenantCounts(counted, 100 * counted, 0.0, 100 * counted)
        belief = at(now, loads).judge(belief, {"router": {tenant: counts}}, RULES)
    return belief


def test_load_counts_from_one_cold_start_before_it_begins() -> None:
    loads = [load(1000, 2000, 10.0)]
    assert at(1000 - COLD_S - 1, loads).foresee(Belief(), COLD_S) is None
    assert AnnouncedWork(2.0, 2.0, recent=False) == at(1000 - COLD_S, loads).foresee(Belief(), COLD_S)
    assert AnnouncedWork(2.0, 2.0, recent=True) == at(1001, loads).foresee(Belief(), COLD_S)
    assert at(2000, loads).foresee(Belief(), COLD_S) is None


def test_what_comes_later_is_known_with_its_time() -> None:
    """A growth that is bounded begins before a start must."""
    loads = [load(1000, 2000, 10.0), load(1100, 1200, 5.0, name="b"), load(1110, 2000, 10.0, "other")]
    belief = Belief(tenants={"other": TenantBelief(0.5, 30.0)})
    later = [AnnouncedRise(190.0, 2.0, 2.0), AnnouncedRise(290.0, 3.0, 3.0), AnnouncedRise(300.0, 4.0, 5.0)]
    found = at(810, loads).foresee(belief, COLD_S, 3 * COLD_S)
    assert AnnouncedWork(0.0, 0.0, recent=False, rises=tuple(later)) == found
    found = at(910, loads).foresee(belief, COLD_S, 199.0)
    assert AnnouncedWork(2.0, 2.0, recent=False, rises=(AnnouncedRise(190.0, 3.0, 3.0),)) == found
    assert at(810, loads).foresee(belief, COLD_S) is None


def test_what_comes_already_is_not_counted_twice() -> None:
    loads = [load(600, 6000, 10.0)]
    belief = come(loads, 4.0, 590.0)
    work = at(600, loads).foresee(belief, COLD_S)

    assert work is not None
    assert pytest.approx(2.0 - 0.8, abs=0.02) == work.soon
    assert at(6000 - 1, loads).foresee(come(loads, 12.0, 3000.0), COLD_S) is None


def test_a_tenant_who_sends_nothing_loses_weight_and_one_who_sends_it_all_gets_it_back() -> None:
    loads = [load(0, 100_000, 10.0)]
    ten = come(loads, 0.0, RULES.grace_s + 600).of("acme")
    assert pytest.approx(10.0, abs=0.5) == ten.judged
    assert pytest.approx(0.5, abs=0.02) == ten.part
    silent = come(loads, 0.0, 4 * 3600.0)
    assert 0.06 > silent.of("acme").part
    again = come(loads, 10.0, 8 * 3600.0, silent)
    assert silent.of("acme").part + 0.5 < again.of("acme").part <= 1.0


def test_more_than_the_announced_counts_as_all_of_it() -> None:
    loads = [load(0, 100_000, 10.0)]
    belief = come(loads, 50.0, 3600.0)
    assert pytest.approx(1.0) == belief.of("acme").part
    other = [load(10_000, 20_000, 10.0, name="b")]
    work = at(10_000, other).foresee(Belief(tenants=belief.tenants), COLD_S)
    assert work is not None
    assert pytest.approx(2.0) == work.soon


def test_one_tenants_silence_costs_no_other_tenant() -> None:
    loads = [load(0, 100_000, 10.0), load(0, 100_000, 10.0, tenant="beta")]
    belief = come(loads, 10.0, 3600.0, tenant="beta")

    assert pytest.approx(1.0, abs=0.05) == belief.of("beta").part
    assert 0.2 > belief.of("acme").part
    assert 1.0 == belief.of("gamma").part


def test_nothing_is_judged_before_the_beginning_and_its_grace() -> None:
    loads = [load(1000, 2000, 10.0)]
    assert {} == come(loads, 0.0, 1000 + RULES.grace_s - TICK_S).tenants
    assert 0 < come(loads, 0.0, 1000 + RULES.grace_s + TICK_S).of("acme").judged


def test_overlapping_announcements_add_up_and_the_quota_bounds_their_sum() -> None:
    loads = [load(0, 1000, 10.0), load(0, 1000, 20.0, name="b")]
    free, bound = (
        at(0, each).foresee(Belief(), COLD_S)
        for each in (loads, [load(0, 1000, 10.0), load(0, 1000, 20.0, name="b", quota_requests=15.0)])
    )
    assert free is not None
    assert bound is not None
    assert pytest.approx(6.0) == free.soon
    assert pytest.approx(3.0) == bound.soon
    tokens = at(0, [load(0, 1000, 10.0, quota_tokens=500.0)]).foresee(Belief(), COLD_S)
    assert tokens is not None
    assert pytest.approx(0.5) == tokens.soon


@pytest.mark.parametrize(
    ("announced", "expected"),
    [
        ({"requests": 10.0}, 2.0),
        ({"requests": 10.0, "prompt_tokens": 900.0, "output_tokens": 100.0}, 10.0),
        ({"tokens": 1000.0}, 1.0),
        ({"tokens": 1000.0, "prompt_tokens": 900.0, "output_tokens": 100.0}, 1.0),
    ],
)
def test_requests_and_tokens_are_work(announced: dict[str, float], expected: float) -> None:
    work = at(0, [AnnouncedLoad("a", "acme", 0, 10_000, **announced)]).foresee(Belief(), COLD_S)
    assert work is not None
    assert pytest.approx(expected) == work.soon


def test_a_router_that_begins_anew_does_not_look_like_silence_or_a_burst() -> None:
    loads = [load(0, 10_000, 10.0)]
    belief = come(loads, 10.0, 900.0)
    before = belief.arrivals.rates["acme"].requests
    counts = {"router": {"acme": TenantCounts(150.0, 15_000.0, 0.0, 15_000.0)}}
    after = at(915, loads).judge(belief, counts, RULES).arrivals.rates["acme"].requests
    assert pytest.approx(before, abs=0.2) == after
    # A router that nobody has heard of before counted the past too.
    stranger = {**belief.arrivals.counters, "other": {"acme": TenantCounts(1e6)}}
    assert before >= at(915, loads).judge(belief, stranger, RULES).arrivals.rates["acme"].requests


def test_a_successor_goes_on_with_what_was_known() -> None:
    belief = come([load(0, 10_000, 10.0)], 5.0, 1800.0)
    read = read_belief(json.loads(json.dumps(belief_values(belief))))

    assert belief == read
    assert Belief() == read_belief({})
    assert 100.0 == belief.up_to(100.0).arrivals.at


def test_the_tenants_that_are_known_least_are_forgotten_first() -> None:
    many = {f"t{number}": TenantBelief(0.5, 1.0 + number) for number in range(MOST_TENANTS)}
    belief = Belief(Arrivals(100.0), many)
    after = at(115.0, [load(-1000, 1000, 10.0, tenant="t200"), load(-1000, 1000, 10.0)]).judge(belief, {}, RULES)

    assert MOST_TENANTS == len(after.tenants)
    assert "acme" not in after.tenants
    assert 201.0 + TICK_S / 60 == after.of("t200").judged


def test_a_quota_that_shrank_is_no_silence() -> None:
    """The tenant sends what it announced, and its quota lets half of it through: its word stays good, and no replica
    is ordered for the other half.
    """
    loads = [load(0, 7200, 10.0, quota_requests=10.0)]
    belief, admitted, refused = Belief(), 0.0, 0.0
    for tick in range(1, 241):
        admitted, refused = admitted + 5.0 * TICK_S, refused + 5.0 * TICK_S
        counts = TenantCounts(admitted, 100 * admitted, 0.0, 100 * admitted, refused)
        belief = at(TICK_S * tick, loads).judge(belief, {"router": {"acme": counts}}, RULES)
    assert pytest.approx(1.0, abs=0.01) == belief.of("acme").part
    assert at(3600, loads).foresee(belief, COLD_S) is None
    assert belief == read_belief(json.loads(json.dumps(belief_values(belief))))
    # The same load without refusals: half of it does not come.
    assert 0.6 > come(loads, 5.0, 3600.0).of("acme").part
    # The quota is back, and what comes is not refused any more: the rest counts again.
    for tick in range(241, 281):
        admitted += 5.0 * TICK_S
        counts = TenantCounts(admitted, 100 * admitted, 0.0, 100 * admitted, refused)
        belief = at(TICK_S * tick, loads).judge(belief, {"router": {"acme": counts}}, RULES)
    assert at(4200, loads).foresee(belief, COLD_S) is not None


def test_the_course_of_announced_work_is_what_holds_at_each_time() -> None:
    loads = [load(100, 300, 10.0), load(200, 400, 10.0, name="b"), load(300, 400, 5.0, "other")]
    belief = Belief(tenants={"other": TenantBelief(0.5, 30.0)})
    found = at(0, loads).course(belief, [0, 150, 250, 350, 400])
    assert pytest.approx([0.0, 2.0, 4.0, 3.0, 0.0]) == [each.said for each in found]
    assert pytest.approx([0.0, 2.0, 4.0, 2.5, 0.0]) == [each.soon for each in found]


@pytest.mark.parametrize("heard", [{}, {"fresh": {}}, {"fresh": {"acme": TenantCounts()}}])
def test_a_look_at_which_the_routers_that_count_are_not_heard_tells_nothing_of_a_tenant(
    heard: dict[str, dict[str, TenantCounts]],
) -> None:
    """Redis was away for longer than their lease, or they begin anew under other names. Work that comes all the time
    would else be ordered a second time.
    """
    loads = [load(0, 10_000, 10.0)]
    before = come(loads, 10.0, 900.0)
    counts = before.arrivals.counters["router"]["acme"]
    belief = at(915, loads).judge(before, heard, RULES)
    assert at(915, loads).foresee(belief, COLD_S) == at(900, loads).foresee(before, COLD_S)
    assert pytest.approx(before.of("acme").part, abs=0.001) == belief.of("acme").part
    # It is back, and all that it counted meanwhile came.
    came = 10.0 * 2 * TICK_S
    after = TenantCounts(counts.requests + came, counts.prompt_tokens + 100 * came, 0.0, counts.output_tokens + came)
    belief = at(930, loads).judge(belief, {**heard, "router": {"acme": after}}, RULES)
    rate = before.arrivals.rates["acme"].requests
    assert rate <= belief.arrivals.rates["acme"].requests <= 15.0


def test_a_tenant_that_is_not_counted_any_more_and_announces_nothing_is_forgotten() -> None:
    belief = come([load(0, 900, 10.0)], 10.0, 900.0)
    after = at(915, []).judge(belief, {"router": {}}, RULES)
    assert {} == after.arrivals.rates
