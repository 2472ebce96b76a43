"""The cost of a request over cells, on a small Redis Cluster."""

from __future__ import annotations

import pytest
from rich.console import Console

from loadtest.benchmarks.cells import over_cells
from loadtest.benchmarks.cells.over_cells import SEQUENCES, CellBench
from loadtest.benchmarks.queue import end_to_end


async def test_every_number_of_cells_has_its_cost_by_server_and_router(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_to_end, "_LEAD_S", 1.0)
    bench, said = CellBench(servers=2, processes=1, seconds=1.0, rounds=1, cells=(1, 2)), list[str]()

    measured = await over_cells.measure(bench, said.append)

    assert [(load, cells) for load in SEQUENCES for cells in (1, 2)] == [(each.load, each.cells) for each in measured]
    assert len(measured) == len(said)
    for each in measured:
        (run,) = each.runs
        assert min(run.router_us_per_request, run.scripts_per_request, *run.servers_us_per_request) > 0
        assert run.redis_us_per_request == pytest.approx(sum(run.servers_us_per_request))
        assert run.busiest_us_per_request == max(run.servers_us_per_request)
    console = Console(width=200, record=True)
    over_cells.show(measured, bench, console)
    assert 2 == console.export_text().count("nobody waits")
    assert {"load", "cells", "runs"} == set(over_cells.fields_of(measured)[0])
