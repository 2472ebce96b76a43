"""A run through the whole stack, in the form that the simulator is validated on."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.benchmarks.drive import Served
from loadtest.benchmarks.record_run import SHORTER, load_of, write_run
from loadtest.traces import TraceRequest
from loadtest.validation.recorded import read_run

TRACE = [TraceRequest(n, 100.0 + 3.0 * n * n, 1000 + n, 80) for n in range(11)]


def test_a_trace_is_shortened_and_played_at_a_rate_with_its_own_pattern() -> None:
    load = load_of(TRACE, 11, rate=2.0)

    assert pytest.approx(5.5) == load[-1].arrival_s
    assert 0.0 == load[0].arrival_s
    assert pytest.approx(4.0) == load[2].arrival_s / load[1].arrival_s
    assert (1003 // SHORTER, 80 // SHORTER) == (load[3].prompt_tokens, load[3].output_tokens)


def test_what_was_written_is_read_as_a_recorded_run(tmp_path: Path) -> None:
    load = load_of(TRACE, 3, rate=1.0)
    served = [Served(10.0 + each.arrival_s, 11.0 + each.arrival_s, 12.0 + each.arrival_s, 10) for each in load]
    served[1].tokens = 0

    assert 2 == write_run(tmp_path / "run", load, served)
    run = read_run(tmp_path / "run")
    assert [load[0].prompt_tokens, load[2].prompt_tokens] == [each.prompt_tokens for each in run.trace]
    assert pytest.approx([1.0, 1.0 + load[2].arrival_s]) == list(run.first_token_s)
    assert 64 == run.engine.max_num_seqs
