"""The link between a load test and Locust's events."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import gevent
from locust import events, runners
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from cluster.errors import PenstockError
from loadtest.load.locust.options import DEFAULT_USER_RATE, HURRY, add_load_flags
from loadtest.load.locust.outputs import print_summary, progress_line, write_csv, write_json
from loadtest.load.locust.session import LoadTest
from loadtest.load.locust.webpage import extend_page
from loadtest.load.results.tally import Window

_TICK_S = 1.0
_CSV_TICKS = 5
_DRAIN_MARGIN_S = 15.0
_LOCAL_BEATS = 15
"""Seconds without a heartbeat after which a worker on this machine counts as lost. Where its cores are busy, all
workers may miss Locust's three at once, mostly while they start; Locust then stops the test.
"""


def add_flags(parser: Any) -> None:
    """Add our flags. Those of the load also appear on Locust's page."""
    add_load_flags(parser, "")
    parser.add_argument(
        "--user-rate",
        type=float,
        default=DEFAULT_USER_RATE,
        help=f"requests per second of each user, without --scenario, --rate and --trace (default {DEFAULT_USER_RATE})",
    )
    for flag, text in (
        ("--duration", "length of the scenario in seconds, instead of --run-time (default: --run-time)"),
        ("--api-key-file", "file with the API key (default: the variable PENSTOCK_API_KEY)"),
        ("--router-ca", "use TLS to routers and trust these authorities (PEM)"),
        ("--router-cert", "show this certificate to routers (PEM)"),
        ("--router-key", "private key of the certificate (PEM)"),
        ("--router-server-name", "the routers' name in their certificate"),
        ("--load-json", "write all figures of the test to this file"),
        ("--progress-file", "append a line of JSON per second to this file"),
    ):
        parser.add_argument(flag, default="", help=text, include_in_web_ui=False)
    for flag, text in (
        ("--router-tls", "use TLS to routers and trust the public authorities"),
        ("--allow-plaintext-key", "send the key without TLS to another machine"),
    ):
        parser.add_argument(flag, action="store_true", help=text, include_in_web_ui=False)


def begin(environment: Any, **_rest: Any) -> None:
    """Prepare this process for its part."""
    runner = environment.runner
    load = LoadTest(environment, drives=not isinstance(runner, MasterRunner))
    environment.penstock = load
    on = environment.events
    on.test_start.add_listener(lambda **_: _start(load))
    on.test_stopping.add_listener(lambda **_: _stop(load))
    on.quitting.add_listener(lambda **_: load.close())
    if isinstance(runner, WorkerRunner):
        # This comes first: the master's messages may arrive while the driver starts.
        _join(runner, load)
        load.launch(wait=True)
        return
    _bound_run_time(load)
    gevent.signal_handler(HURRY, _hurry, load)
    # The page need not wait. Its user waits after pressing start.
    load.launch(wait=environment.web_ui is None or environment.parsed_options.autostart)
    if isinstance(runner, MasterRunner):
        if environment.parsed_options.processes:
            runners.HEARTBEAT_LIVENESS = _LOCAL_BEATS
        _lead(runner, load)
    on.test_stop.add_listener(lambda **_: _write(load))
    on.reset_stats.add_listener(lambda **_: load.reset())
    on.quit.add_listener(lambda **_: print_summary(load))
    if environment.web_ui is not None:
        extend_page(environment.web_ui, load)
    gevent.spawn(_tick, load)


def _bound_run_time(load: LoadTest) -> None:
    """Let a test that starts by itself end with its scenario if no time is given. Nothing would come after it."""
    options = load.environment.parsed_options
    if options.run_time or not (options.headless or options.autostart):
        return
    try:
        length = load.length_s()
    except PenstockError:
        return  # The start reports it.
    if length is not None:
        options.run_time = math.ceil(length)


def _hurry(load: LoadTest) -> None:
    load.hurried = True
    gevent.spawn(load.environment.runner.quit)


def _start(load: LoadTest) -> None:
    runner = load.environment.runner
    if isinstance(runner, MasterRunner):
        ready = sorted(client.id for client in runner.clients.ready)
        load.workers, load.drained, load.shards = set(ready), set(), max(1, len(ready))
        for shard, client_id in enumerate(ready):
            runner.send_message("penstock_shard", [shard, len(ready)], client_id)
    load.start()


def _stop(load: LoadTest) -> None:
    runner = load.environment.runner
    if not isinstance(runner, MasterRunner):
        load.drain()
        return
    # Before Locust stops its workers: it waits only half a second for their last reports.
    load.stopped_at = time.monotonic()
    runner.send_message("penstock_drain", load.hurried)
    scenario = load.scenario  # none where the test could not begin
    whole = load.environment.parsed_options.duration and not load.hurried
    planned_s = scenario.duration_s if scenario is not None and whole else 0.0
    bound = time.monotonic() + planned_s + load.drain_s + _DRAIN_MARGIN_S
    while _present(runner) - load.drained and time.monotonic() < bound:
        gevent.sleep(0.05)
    # Also count workers that left earlier: their requests were not sent by any other worker.
    if lost := load.workers - load.drained:
        load.lose(lost)


def _present(runner: MasterRunner) -> set[str]:
    return {client.id for client in runner.clients.all if client.state != STATE_MISSING}


def _join(runner: Any, load: LoadTest) -> None:
    def shard(msg: Any, **_rest: Any) -> None:
        load.shard, load.shards = msg.data

    def drain(msg: Any, **_rest: Any) -> None:
        load.hurried = bool(msg.data)
        load.drain()
        windows, load.pending = load.pending, []
        body = {"windows": [window.to_wire() for window in windows], "clipped": load.record.clipped}
        runner.send_message("penstock_drained", body)

    def report(data: dict[str, Any], **_rest: Any) -> None:
        windows, load.pending = load.pending, []
        data["penstock"] = [window.to_wire() for window in windows]

    load.join()
    runner.register_message("penstock_shard", shard)
    runner.register_message("penstock_drain", drain, concurrent=True)
    load.environment.events.report_to_master.add_listener(report)


def _lead(runner: Any, load: LoadTest) -> None:
    def take(windows: Any) -> None:
        for each in windows:
            load.record.add(Window.from_wire(each))

    def drained(msg: Any, **_rest: Any) -> None:
        take(msg.data["windows"])
        load.record.clipped += msg.data["clipped"]
        load.drained.add(msg.node_id)

    def failed(msg: Any, **_rest: Any) -> None:
        load.drained.add(msg.node_id)
        load.fail(f"worker {msg.node_id}: {msg.data}")

    runner.register_message("penstock_drained", drained)
    runner.register_message("penstock_failed", failed)
    load.environment.events.worker_report.add_listener(lambda data, **_: take(data.get("penstock", ())))


def _write(load: LoadTest) -> None:
    options = load.environment.parsed_options
    if load.starts_at is None:
        return
    if options.csv_prefix:
        write_csv(options.csv_prefix, load)
    if options.load_json:
        write_json(Path(options.load_json), load)


def _tick(load: LoadTest) -> None:
    ticks = 0
    while True:
        gevent.sleep(_TICK_S)
        ticks += 1
        options = load.environment.parsed_options
        if load.starts_at is None:
            continue
        if options.progress_file:
            with Path(options.progress_file).open("a", encoding="utf-8") as file:
                file.write(json.dumps(progress_line(load)) + "\n")
        if options.csv_prefix and ticks % _CSV_TICKS == 0:
            write_csv(options.csv_prefix, load)


events.init_command_line_parser.add_listener(add_flags)
events.init.add_listener(begin)
