from __future__ import annotations

from loadtest.simulate.autoscalers.baselines import Hpa, HpaMetric, RayServe
from loadtest.simulate.autoscalers.contract import PoolSnapshot, ReplicaSnapshot, SlowPolicy
from penstock.models import ReplicaState, RequestClass


def pool(
    now: float, desired: int, *, ready: int, running: int = 0, starting: int = 0, waiting: int = 0
) -> PoolSnapshot:
    replicas = [
        *(
            ReplicaSnapshot(f"r{n}", now, ReplicaState.READY, 0.0, 10, 10, running, 0, running / 10, 1000)
            for n in range(ready)
        ),
        *(ReplicaSnapshot(f"s{n}", now, ReplicaState.STARTING, 0.0, 10, 10) for n in range(starting)),
    ]
    return PoolSnapshot(now, desired, 60.0, replicas, {RequestClass.STANDARD: waiting})


def test_hpa_goes_up_in_proportion_and_at_most_four_or_double() -> None:
    assert 6 == Hpa(target=0.5).decide(pool(0, 4, ready=4, running=7))
    assert 8 == Hpa(target=0.1).decide(pool(0, 4, ready=4, running=10))
    assert 5 == Hpa(target=0.1).decide(pool(0, 1, ready=1, running=10))


def test_hpa_tolerates_a_tenth() -> None:
    assert 4 == Hpa(target=0.65).decide(pool(0, 4, ready=4, running=7))


def test_hpa_counts_what_starts_as_idle_when_it_goes_up() -> None:
    assert 8 == Hpa(target=0.5).decide(pool(0, 8, ready=4, running=9, starting=4))


def test_hpa_goes_down_to_the_highest_wish_of_five_minutes() -> None:
    policy = Hpa(target=0.5)
    decided = [policy.decide(pool(at, 8, ready=8, running=4 if at < 30 else 1)) for at in range(0, 400, 15)]
    assert {8} == set(decided[:21])
    assert 7 == decided[21]
    assert 2 == decided[-1]


def test_hpa_looks_at_what_it_is_told_to() -> None:
    snapshot = pool(0, 2, ready=2, running=5, waiting=30)
    wishes = {
        metric: Hpa(metric, target).decide(snapshot) for metric, target in ((HpaMetric.QUEUE, 5), (HpaMetric.KV, 0.25))
    }
    assert {HpaMetric.QUEUE: 6, HpaMetric.KV: 4} == wishes


def repeat(policy: SlowPolicy, snapshots: list[PoolSnapshot]) -> list[int]:
    return [policy.decide(each) for each in snapshots]


def test_ray_goes_up_after_its_delay_and_down_after_a_longer_one() -> None:
    policy = RayServe(target=2.0)
    up = repeat(policy, [pool(at, 2, ready=2, running=4) for at in range(0, 60, 10)])
    assert [2, 2, 2, 4] == up[:4]
    down = repeat(policy, [pool(at, 4, ready=4, running=0) for at in range(100, 900, 10)])
    assert 4 == down[59]
    assert 0 == down[-1] or 0 in down[60:]


def test_ray_counts_those_in_line() -> None:
    policy = RayServe(target=10.0, up_delay_s=0.0)
    assert 4 == policy.decide(pool(0, 2, ready=2, running=5, waiting=30))
