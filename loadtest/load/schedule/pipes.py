"""Copies of a scenario's pipes, such as `--trace <(zcat trace.csv.gz)`.

A pipe can be read only once. A scenario's files are read before the run, by every generator process, and for every
trial of a sweep.
"""

from __future__ import annotations

import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from cluster.errors import TraceError, plain_reason
from loadtest.load.schedule.scenario import Scenario


@contextmanager
def without_pipes(scenario: Scenario) -> Iterator[Scenario]:
    """Yield the scenario with copies in place of its pipes. The copies are removed at the end.

    Raises:
        TraceError: a pipe can't be read.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-loadtest-") as name:
        folder = Path(name)
        trace = _copied(scenario.trace, folder / "trace")
        lengths = trace if scenario.lengths == scenario.trace else _copied(scenario.lengths, folder / "lengths")
        yield replace(scenario, trace=trace, lengths=lengths)


def _copied(file: str, to: Path) -> str:
    if not file or not _is_pipe(Path(file)):
        return file
    try:
        with Path(file).open("rb") as pipe, to.open("wb") as copy:
            shutil.copyfileobj(pipe, copy)
    except OSError as error:
        raise TraceError(file, 0, "", plain_reason(error)) from error
    return str(to)


def _is_pipe(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        # The code that reads the file reports it.
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
