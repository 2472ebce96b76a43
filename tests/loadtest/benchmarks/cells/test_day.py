"""A simulated day: what happens in its phases, and that its figures count everything once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from cluster.queue.cells.choice import home
from loadtest.benchmarks.cells import __main__ as command
from loadtest.benchmarks.cells.figures import SizeFigures, figures_of, phases_of
from loadtest.benchmarks.cells.phases import DAY, Day
from loadtest.benchmarks.cells.setup import PoolSize
from loadtest.benchmarks.cells.simulation import PoolSimulation
from loadtest.benchmarks.cells.traffic import PoolTraffic, tenant_name

SMALL = PoolSize(
    cells=4, replicas=40, routers=6, tenants=200, rate=130.0, seconds=200, warm_up=0, sequences=4, output=30, day=True
)
"""A pool whose slots are nine tenths full at the usual rate."""
NAMES = [phase.name for phase in DAY]


def slots(run: PoolSimulation) -> int:
    return sum(replica.sequences for state in run._cells for replica in state.model.replicas.values())


def test_the_phases_fill_the_measured_time() -> None:
    day = Day(DAY, 200)
    assert 1.0 == pytest.approx(sum(phase.part for phase in DAY))
    assert 200 == sum(day.seconds(number) for number in range(len(DAY)))
    assert NAMES == list(dict.fromkeys(day.at(second).phase.name for second in range(200)))


def test_a_wave_rises_and_falls_and_has_its_phases_mean() -> None:
    day, wave = Day(DAY, 2000), DAY[0]
    rates = [day.at(second).rate for second in range(day.seconds(0))]
    assert wave.rate == pytest.approx(sum(rates) / len(rates))
    assert [wave.rate * (1 + wave.wave), wave.rate * (1 - wave.wave)] == pytest.approx([max(rates), min(rates)])


def test_a_day_counts_every_request_once_and_loses_no_replica() -> None:
    run, room = PoolSimulation(SMALL), dict[str, set[int]]()
    unavailable = dict[str, bool]()

    def note(second: int) -> None:
        moment = run.traffic.moment(second - 1)
        assert moment is not None
        room.setdefault(moment.phase.name, set()).add(slots(run))
        unavailable[moment.phase.name] = bool(run.tally.unavailable)

    run.run(note)
    whole, phases = figures_of(run, 1.0, 0.0), phases_of(run)
    waiting = sum(state.model.waiting for state in run._cells)
    assert run.arrived == whole.requests == sum(each.requests for each in phases)
    assert whole.requests == run.whole().ended + run.running + waiting + whole.unavailable
    assert whole.messages == {
        kind: count for kind in whole.messages if (count := sum(each.messages.get(kind, 0) for each in phases))
    }
    assert ["cell away"] == [name for name, failed in unavailable.items() if failed]
    assert max(room["fewer replicas"]) <= 0.8 * SMALL.replicas * SMALL.sequences
    # A replica on its way to another cell takes no work for a while.
    assert SMALL.replicas * SMALL.sequences == max(room["steady"]) == max(room["more replicas"])
    assert SMALL.replicas == sum(len(state.model.replicas) for state in run._cells)


def test_replicas_of_a_cell_that_is_away_serve_others_and_its_line_goes_on_when_it_is_back() -> None:
    run, served = PoolSimulation(replace(SMALL, pinned=0.5)), dict[str, int]()
    members = list[int]()

    def note(second: int) -> None:
        moment, last = run.traffic.moment(second - 1), run._cells[-1]
        assert moment is not None
        served[moment.phase.name] = sum(last.granted)
        if last.away:
            members.append(sum(len(state.model.replicas) for state in run._cells[:-1]))

    run.run(note)
    by_name = {each.phase: each for each in phases_of(run)}
    assert served["cell away"] == served["hot homes"]
    assert served["cell back"] > served["cell away"]
    assert members[-1] > members[0]
    assert by_name["cell away"].unavailable > 10
    assert 0 == by_name["cell back"].unavailable
    assert not run._cells[-1].unreleased


def test_a_hot_home_gets_the_work_of_one_more_cell() -> None:
    size = replace(SMALL, rate=20_000.0, seconds=1000, pinned=0.5)
    traffic = PoolTraffic(size)
    usual = traffic.homes()
    begin = next(second for second in range(1000) if traffic.day.at(second).phase.name == "hot homes")
    last = max(second for second in range(1000) if traffic.day.at(second).phase.name == "hot homes")
    for second, cell in ((begin, 0), (last, 2)):
        tenants = [entry.tenant for _, entry, _ in traffic.second(second)]
        at_home = [traffic.pinned[each] and cell == home(tenant_name(each), 4) for each in tenants]
        # A quarter of all requests is one cell's mean load.
        expected = 0.25 + 0.75 * usual[cell]
        assert expected == pytest.approx(sum(at_home) / len(at_home), abs=0.02)


def test_figures_are_kept_while_a_run_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "KEEP_S", 0.0)
    kept = list[list[SizeFigures]]()
    last = command.KeptSimulation(replace(SMALL, seconds=40), kept.append).run(Console(quiet=True))
    requests = [each[0].requests for each in kept]
    assert requests == sorted(requests)
    assert 0 < requests[0] < last[0].requests
    # The phase that is under way has its figures too.
    assert ["whole", NAMES[0]] == [each.phase for each in kept[0]]
    assert kept[0][0].requests == kept[0][1].requests
    assert ["whole", *NAMES[:2]] in [[each.phase for each in some] for some in kept]
    assert ["whole", *NAMES] == [each.phase for each in last]
