"""What is kept of a run to find out why it went wrong: logs of the processes, and what clients saw."""

from __future__ import annotations

import datetime
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chaos.history import Accepted, Event, Failed, Finished, History, Tokens


def copy_logs(source: Path, target: Path) -> None:
    """Copy the logs and the engines' journals of a cluster."""
    target.mkdir(parents=True, exist_ok=True)
    for path in (*source.glob("*.log"), *source.glob("*.jsonl")):
        shutil.copy(path, target / path.name)


def write_history(history: History, path: Path) -> None:
    """Write a line per fault and request, with times in seconds after the first fault."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in _lines(history)), encoding="utf-8")


def _lines(history: History) -> Iterator[dict[str, Any]]:
    zero = min((fault.at for fault in history.faults), default=0.0)
    # Logs have the time of day.
    clock = datetime.datetime.fromtimestamp(time.time() - time.monotonic() + zero, datetime.UTC)
    yield {"zero": clock.isoformat(timespec="milliseconds")}
    for fault in history.faults:
        yield {"fault": fault.name, "at": round(fault.at - zero, 3), "proof": fault.proof, "heals": fault.heals}
    for request in history.requests:
        events = [[round(event.at - zero, 3), type(event).__name__.lower(), *_facts(event)] for event in request.events]
        yield {"request": request.name, "events": events}


def _facts(event: Event) -> list[Any]:
    match event:
        case Accepted():
            return [event.request_id]
        case Tokens():
            return [event.offset, len(event.ids)]
        case Failed():
            return [event.code, event.reason, event.final]
        case Finished():
            return [event.reason, event.attempts, event.router_id]
        case _:
            return []
