"""Tables and sentences of a comparison with a recorded run."""

from __future__ import annotations

import math

from rich.table import Table

from cluster.plural import counted
from cluster.terminal.tables import add_columns
from loadtest.validation.errors import Errors
from loadtest.validation.model import Expected
from loadtest.validation.recorded import RecordedRun


def error_table(errors: Errors, title: str) -> Table:
    """Return the errors of a prediction for a terminal."""
    table = Table(title=title)
    add_columns(table, "", "mean", "p99", "single requests", words=("",))
    rows = {
        "TTFT": (errors.ttft_mean_error, errors.ttft_p99_error, errors.ttft_request_error),
        "TPOT": (errors.tpot_mean_error, errors.tpot_p99_error, errors.tpot_request_error),
        "ITL": (errors.itl_mean_error, math.nan, math.nan),
        "E2E": (errors.e2e_mean_error, errors.e2e_p99_error, errors.e2e_request_error),
    }
    if errors.unqueued:
        rows[f"TTFT of {errors.unqueued} without a queue"] = (errors.unqueued_ttft_mean_error, math.nan, math.nan)
    for name, (mean, p99, single) in rows.items():
        table.add_row(name, _signed(mean), _signed(p99), "" if math.isnan(single) else f"{single:.1%}")
    return table


def _signed(error: float) -> str:
    return "" if math.isnan(error) else f"{error:+.1%}"


def sentences(run: RecordedRun, expected: Expected) -> list[str]:
    """Say how a run was read, and what its engine is held to."""
    said = [f"held to {expected.why}"]
    if expected.lanes > 1:
        ranks = counted(expected.lanes, "data parallel rank")
        said.append(f"{ranks}, each an engine of its own; the least loaded one gets a request")
    if expected.merged > 1:
        ranks = counted(expected.merged, "data parallel rank")
        said.append(
            f"{ranks} in lock-step, as one engine with the limits of all; held to one measured run of two ranks"
        )
    if run.version:
        said.append(f"recorded with vLLM {run.version}")
    return said
