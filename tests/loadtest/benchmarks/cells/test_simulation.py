"""The simulation of a pool of cells: what it shows of production's decisions, and that its figures are right."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from cluster.queue.cells import choice, moving
from cluster.queue.cells.choice import home
from loadtest.benchmarks.cells import __main__ as command
from loadtest.benchmarks.cells import routers
from loadtest.benchmarks.cells.fairness import fair_shares, fairness, jain
from loadtest.benchmarks.cells.figures import SizeFigures, figures_of
from loadtest.benchmarks.cells.model_line import CellEntry
from loadtest.benchmarks.cells.setup import PoolSize
from loadtest.benchmarks.cells.simulation import PoolSimulation
from loadtest.benchmarks.cells.traffic import PoolTraffic, tenant_name

SMALL = PoolSize(cells=4, replicas=16, routers=6, tenants=40, rate=50.0, seconds=20, warm_up=5, sequences=4, output=30)
"""A pool whose slots are nine tenths full."""


def test_a_run_is_the_same_each_time_and_counts_every_request() -> None:
    runs = [PoolSimulation(SMALL) for _ in range(2)]
    for run in runs:
        run.run()
    first, second = (figures_of(run, 1.0, 0.0) for run in runs)
    assert first == second
    tally = runs[0].tally
    waiting = sum(state.model.waiting for state in runs[0]._cells)
    assert first.requests > 900
    assert first.granted + waiting >= first.requests > first.granted - SMALL.warm_up * SMALL.rate
    assert tally.messages["submits"] == first.requests
    assert tally.messages["router heartbeats"] == SMALL.seconds * SMALL.routers * (SMALL.cells + 1)


def test_the_load_is_the_same_whatever_the_number_of_cells() -> None:
    every = [
        [
            (moment, entry.tenant, entry.prompt, entry.output)
            for moment, entry, _ in PoolTraffic(replace(SMALL, cells=cells)).second(3)
        ]
        for cells in (1, 16)
    ]
    assert every[0] == every[1]
    assert every[0]


def test_a_pinned_tenants_requests_are_all_in_its_home() -> None:
    size = replace(SMALL, pinned=1.0)
    run = PoolSimulation(size)
    seen = Counter[tuple[int, int]]()
    for state in run._cells:
        submit, number = state.model.submit, state.number

        def note(entry, submit=submit, number=number):  # type: ignore[no-untyped-def]
            seen[entry.tenant, number] += 1
            submit(entry)

        state.model.submit = note  # type: ignore[method-assign]
    run.run()
    assert {(tenant, home(tenant_name(tenant), 4)) for tenant, _ in seen} == set(seen)
    assert 1.0 == pytest.approx(sum(run.traffic.homes()))


def test_a_fair_share_is_bounded_by_what_a_tenant_asked_for() -> None:
    asked, weights = np.array([10.0, 100.0, 100.0, 0.0]), np.array([1.0, 1.0, 3.0, 1.0])
    assert [10.0, 22.5, 67.5, 0.0] == pytest.approx(fair_shares(asked, weights, 100.0).tolist())
    assert asked.tolist() == pytest.approx(fair_shares(asked, weights, 1000.0).tolist())


def test_jains_index_is_one_for_fair_shares_and_falls_with_their_number_for_one_alone() -> None:
    asked, weights = np.array([[100.0, 100.0]]), np.array([1.0, 3.0])
    assert 1.0 == pytest.approx(fairness(np.array([[20.0, 60.0]]), asked, weights))
    assert 0.25 == pytest.approx(jain(np.array([8.0, 0.0, 0.0, 0.0])))
    assert fairness(np.array([[40.0, 40.0]]), asked, weights) < 0.9


def test_a_size_out_of_range_is_refused_with_flag_limit_and_value() -> None:
    with pytest.raises(ValueError, match="--cells must be from 1 to 64, got 65"):
        PoolSize(cells=65)
    with pytest.raises(ValueError, match=r"--pinned must be from 0 to 1, got 1\.5"):
        PoolSize(pinned=1.5)


def test_the_command_refuses_a_bad_size_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench-cells", "--rate", "0"])
    assert 2 == command.main()
    printed = capsys.readouterr()
    assert "--rate must be from 0.01 to 1e+07, got 0" in printed.out + printed.err


# --- what the simulation found --------------------------------------------------------------------------------------


def figures(size: PoolSize) -> SizeFigures:
    run = PoolSimulation(size)
    run.run()
    return figures_of(run, 1.0, 0.0)


def test_a_full_home_gets_replicas_although_all_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three quarters of the slots are used, and a third more must go to one home than its own replicas take."""
    size = replace(
        SMALL, replicas=24, sequences=16, tenants=12, rate=240.0, skew=1.2, pinned=0.4, seconds=40, warm_up=60, seed=8
    )
    found = figures(size)
    assert 1.9 < found.hottest_home
    assert 1.0 == found.attainment_pinned
    assert found.longest_ms < 1000
    needed = moving._is_needed
    monkeypatch.setattr(moving, "_is_needed", lambda *cells, size, idle: idle and needed(*cells, size=size, idle=idle))
    control = figures(size)
    assert control.attainment_pinned < 0.5
    assert control.idle_beside_a_line > 0.2


def test_tenants_of_one_cell_have_their_share_of_a_full_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of six tenants asks for half of the pool, and half of them are served by their homes only."""
    size = replace(SMALL, tenants=6, skew=0.0, pinned=0.5, rate=180.0, seconds=60, warm_up=60)
    assert figures(replace(size, cells=1)).jain > 0.99
    assert figures(size).jain > 0.93
    monkeypatch.setattr(routers, "weight_in_cell", lambda weight, cells, part, *, at_home: weight)
    assert figures(size).jain < 0.9


def test_a_tenant_that_sends_half_of_its_requests_with_keys_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six tenants that each ask for half of the pool."""

    def share() -> float:
        size = replace(SMALL, tenants=6, skew=0.0, pinned=0.0, rate=180.0, seconds=60, warm_up=60, weights=False)
        run = PoolSimulation(size)
        draw, second = random.Random(3), run.traffic.second

        def with_keys(number: int) -> Iterator[tuple[int, CellEntry, bool]]:
            for moment, entry, follows in second(number):
                entry.pinned = entry.tenant == 0 and draw.random() < 0.5
                yield moment, entry, follows

        monkeypatch.setattr(run.traffic, "second", with_keys)
        served = np.array(run.run().served).sum(0)
        return 6 * float(served[0]) / float(served.sum())

    assert 0.8 < share() < 1.1
    # As it was: the whole weight elsewhere, too.
    monkeypatch.setattr(
        routers, "weight_in_cell", lambda weight, cells, part, *, at_home: weight * (cells if at_home else 1)
    )
    assert share() > 1.2


def test_many_routers_with_old_news_do_not_all_send_to_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short requests: in the time between two heartbeats more come than a cell has slots."""
    size = replace(SMALL, cells=8, replicas=80, routers=20, tenants=500, rate=700.0, sequences=8, output=20)
    size = replace(size, pinned=0.0, affinity=0.0)
    found = figures(size)
    monkeypatch.setattr(choice, "_certainty", lambda best, rest: 1.0)
    control = figures(size)
    assert found.moved < control.moved / 5
    assert found.idle_beside_a_line < 0.7 * control.idle_beside_a_line
    assert found.wait_p99_ms <= control.wait_p99_ms
