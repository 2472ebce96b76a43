"""The flags that describe a load, the same for Locust and for `penstock loadtest`."""

from __future__ import annotations

import argparse
import math
import os
import signal
from pathlib import Path
from typing import Any

from cluster.errors import SettingsError
from cluster.terminal.command import KEY_VARIABLE
from cluster.terminal.values import MOST_TIME
from loadtest.load.driver.target import Target, split_routers
from loadtest.load.schedule.arrivals import PATTERNS, Pattern
from loadtest.load.schedule.scenario import SCENARIOS, Scenario, find_scenario, scenario_fields, scenario_from
from loadtest.traces import trace_file

DEFAULT_SCENARIO = "chat"
DEFAULT_USER_RATE = 0.2
DEFAULT_DRAIN_S = 30.0
DEFAULT_TIMEOUT_S = 600.0
HURRY = signal.SIGUSR1
"""Signal that ends a planned load early. Locust's own signals let all planned requests be sent first."""

_FIELDS = (
    ("arrivals", str, f"pattern, such as poisson or gamma:cv=3; one of {', '.join(PATTERNS)}"),
    ("seed", int, "seed of all random draws"),
    ("trace", str, "replay this recorded load: Azure, BurstGPT, Mooncake, CSV or JSONL, or `sample`"),
    ("scale-rate", float, "speed the trace up by this factor"),
    ("lengths", str, "draw lengths from this trace, `sample`, or CSV with num_prefill_tokens and num_decode_tokens"),
    ("prompt-tokens", int, "length of all prompts; goes with --output-tokens"),
    ("output-tokens", int, "length of all outputs"),
    ("slo-ttft", float, "SLO of a request: seconds to its first token"),
    ("slo-itl", float, "SLO of a request: seconds, 95th percentile of its own gaps between tokens"),
    ("warmup", float, "do not count requests of the first seconds"),
)
_FILES = ("trace", "lengths")
_RENAMED = {"slo_ttft": "slo_ttft_s", "slo_itl": "slo_itl_s", "warmup": "warmup_s", "duration": "duration_s"}


def add_load_flags(parser: Any, scenario: str) -> None:
    """Add the flags of the load. Numbers are checked when the scenario is built, because Locust's page gives text."""
    parser.add_argument(
        "--scenario",
        default=scenario,
        help=f"{', '.join(SCENARIOS)}, or a .toml file (default: {scenario or 'none'})",
    )
    parser.add_argument("--rate", default=None, help="requests per second of the whole test (default: the scenario's)")
    for flag, _, text in _FIELDS:
        parser.add_argument(f"--{flag}", default=None, help=f"{text} (default: the scenario's)")
    parser.add_argument("--model", default="", help="model name (default: the only one)")
    parser.add_argument(
        "--request-timeout",
        type=float,
        default=DEFAULT_TIMEOUT_S,
        help=f"deadline of a request in seconds (default {DEFAULT_TIMEOUT_S:g})",
    )
    parser.add_argument(
        "--flush-interval",
        type=float,
        default=None,
        help="seconds for which routers merge deltas (default: theirs)",
    )
    parser.add_argument(
        "--drain",
        type=float,
        default=DEFAULT_DRAIN_S,
        help="seconds to wait at the end for open requests; later ones are cut off and count as failed "
        f"(default {DEFAULT_DRAIN_S:g})",
    )


def scenario_of(options: argparse.Namespace, duration_s: float | None = None) -> Scenario:
    """Build the scenario that the flags describe.

    Args:
        options: with the flags of `add_load_flags`.
        duration_s: replaces the scenario's own.

    Raises:
        SettingsError: a value is wrong.
    """
    fields = scenario_fields(find_scenario(options.scenario or DEFAULT_SCENARIO))
    for flag, kind, _ in (("rate", float, ""), *_FIELDS):
        name = flag.replace("-", "_")
        value = getattr(options, name)
        if value is not None and value != "":
            fields[_RENAMED.get(name, name)] = trace_file(value) if name in _FILES else _number(flag, value, kind)
    _check_trace(options, replays=bool(fields.get("trace")))
    if duration_s is not None:
        fields["duration_s"] = duration_s
    if fields.get("trace") and getattr(options, "trace", None):
        fields |= {"name": Path(options.trace).stem, "text": "", "arrivals": str(Pattern.parse("trace"))}
    return scenario_from({name: value for name, value in fields.items() if value != "" or name == "text"})


_NOT_OF_TRACES = ("rate", "arrivals", "lengths", "prompt_tokens", "output_tokens")


def _check_trace(options: argparse.Namespace, *, replays: bool) -> None:
    """Refuse flags without an effect. Otherwise their figures would be read as those of a different load."""
    for name in _NOT_OF_TRACES if replays else ("scale_rate",):
        value = getattr(options, name)
        if value in (None, ""):
            continue
        flag = name.replace("_", "-")
        if not replays:
            raise SettingsError(f"{flag} is for traces, got {value} without a trace; give a rate")
        if (name, value) != ("arrivals", "trace"):
            raise SettingsError(f"{flag}: a trace has its own times and lengths, got {value}; see scale-rate")


def target_of(options: argparse.Namespace, host: str) -> Target:
    """Build the target that Locust's host and our flags describe.

    Raises:
        SettingsError: a value is wrong.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    if options.api_key_file:
        key = _text(options.api_key_file)
    target = Target(
        routers=split_routers(host),
        model=options.model,
        api_key=key,
        allow_plaintext_key=options.allow_plaintext_key,
        tls=options.router_tls,
        ca=options.router_ca,
        cert=options.router_cert,
        key=options.router_key,
        server_name=options.router_server_name,
        timeout_s=_time("request-timeout", options.request_timeout, DEFAULT_TIMEOUT_S, above_zero=True),
        flush_s=None if options.flush_interval in (None, "") else _time("flush-interval", options.flush_interval, 0.0),
    )
    target.check("router")
    return target


def drain_of(options: argparse.Namespace) -> float:
    """Return the seconds that the end of a test may wait for open requests.

    Raises:
        SettingsError: the value is no length of time.
    """
    return _time("drain", options.drain, DEFAULT_DRAIN_S)


def _time(flag: str, value: Any, default: float, *, above_zero: bool = False) -> float:
    if value in (None, ""):
        return default
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MOST_TIME or (above_zero and seconds == 0):
        allowed = f"above 0 and at most {MOST_TIME}" if above_zero else f"from 0 to {MOST_TIME}"
        raise SettingsError(f"{flag} must be a number {allowed}, got {value!r}")
    return seconds


def _number(flag: str, value: Any, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise SettingsError(f"{flag} must be {noun}, got {value!r}") from None


def _text(name: str) -> str:
    try:
        return Path(name).expanduser().read_bytes().decode(errors="replace").strip()
    except OSError as error:
        raise SettingsError(f"api-key-file: {name} cannot be read: {error.strerror}") from error
