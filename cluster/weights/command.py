"""`penstock weights`: fetch models from a hub before replicas need them, and wait until they are there."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from cluster.errors import SettingsError, plain_reason
from cluster.sources import ModelSource, SourceKind, source_of
from cluster.terminal.command import add_action, show_examples
from cluster.terminal.console import print_problem
from cluster.terminal.values import folder, time_from_zero, time_of, whole, word

POLL_S = 5.0
"""Seconds between two looks at a cache."""
_REMIND_S = 30.0
_COMMIT = "0123456789abcdef0123456789abcdef01234567"


def add_flags(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    fetch = add_action(actions, "fetch", "fetch models into the cache; goes on where an earlier start ended")
    _add_common(fetch)
    fetch.add_argument(
        "--include",
        action="append",
        default=[],
        type=word,
        metavar="PATTERN",
        help="fetch these files only; repeatable",
    )
    fetch.add_argument(
        "--exclude", action="append", default=[], type=word, metavar="PATTERN", help="leave files out; repeatable"
    )
    fetch.add_argument("--parallel", type=whole(1, 64), default=4, metavar="N", help="files at a time (default 4)")
    fetch.add_argument(
        "--give-up-after",
        type=time_of,
        default=6 * 3600.0,
        metavar="S",
        help="seconds without progress after which to give up (default 21600)",
    )
    fetch.add_argument(
        "--report-every", type=time_of, default=10.0, metavar="S", help="seconds between lines of progress (default 10)"
    )
    fetch.set_defaults(run=run_fetch)
    waiting = add_action(actions, "wait", "wait until models are complete in the cache")
    _add_common(waiting)
    waiting.add_argument(
        "--timeout",
        type=time_from_zero,
        metavar="S",
        help="longest wait in seconds (default: none)",
    )
    waiting.set_defaults(run=run_wait)
    check = add_action(actions, "check", "say whether models are complete in the cache; status 1 where one is not")
    _add_common(check)
    check.set_defaults(run=run_check)
    show_examples(
        parser,
        f"penstock weights fetch org/model@{_COMMIT} --cache /models/cache/hub/hub",
        f"penstock weights check org/model@{_COMMIT}",
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", nargs="*", metavar="MODEL", help="hub id, with @ and a commit, tag or branch")
    parser.add_argument(
        "--list", type=word, metavar="FILE", help="file with further models, one a line; a wait reads it repeatedly"
    )
    parser.add_argument(
        "--cache", type=folder, metavar="DIR", help="the hub's cache (default: HF_HUB_CACHE, or hub in HF_HOME)"
    )


def run_fetch(options: argparse.Namespace) -> int:
    """Fetch models.

    Raises:
        SettingsError: one can't be had at all.
        FetchGivenUpError: the hub gave nothing for too long.
    """
    from huggingface_hub.utils.tqdm import disable_progress_bars

    from cluster.weights.fetch import FetchOptions, fetch_all
    from cluster.weights.retry import RetryRules

    disable_progress_bars()
    fetch_all(
        _sources(options),
        FetchOptions(
            cache=_cache(options),
            include=tuple(options.include),
            exclude=tuple(options.exclude),
            parallel=options.parallel,
            rules=RetryRules(give_up_s=options.give_up_after),
            report_s=options.report_every,
        ),
        _say,
    )
    return 0


def run_wait(options: argparse.Namespace) -> int:
    """Wait until all models are complete."""
    begun = said = time.monotonic()
    lacks = _lacks(options)
    while lacks:
        now = time.monotonic()
        if options.timeout is not None and now - begun >= options.timeout:
            print_problem(f"{lacks}, after {options.timeout:.0f} s")
            return 1
        if said == begun or now - said >= _REMIND_S:
            said = now
            _say(f"waiting: {lacks}")
        left = POLL_S if options.timeout is None else begun + options.timeout - now
        time.sleep(min(POLL_S, max(0.0, left)))
        lacks = _lacks(options)
    _say(f"complete: {', '.join(_named(options))}")
    return 0


def run_check(options: argparse.Namespace) -> int:
    """Say whether all models are complete."""
    if lacks := _lacks(options):
        print_problem(lacks)
        return 1
    _say(f"complete: {', '.join(_named(options))}")
    return 0


def _lacks(options: argparse.Namespace) -> str:
    from cluster.weights.cache import what_lacks

    cache = _cache(options)
    return next((lacks for source in _sources(options) if (lacks := what_lacks(cache, source))), "")


def _sources(options: argparse.Namespace) -> list[ModelSource]:
    found = []
    for text in _named(options):
        try:
            source = source_of(text)
        except ValueError as error:
            raise SettingsError(f"MODEL: {error}") from error
        if source.kind is not SourceKind.HUB:
            where = {SourceKind.STORE: "in an object store, which the engine reads by itself"}
            raise SettingsError(
                f"MODEL: must be a hub id such as org/name, got {text!r}, which is "
                f"{where.get(source.kind, 'a path on this machine')}"
            )
        found.append(source)
    return found


def _named(options: argparse.Namespace) -> list[str]:
    named = list(options.sources)
    if options.list is not None:
        try:
            named += Path(options.list).expanduser().read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"--list: {options.list} cannot be read: {plain_reason(error)}") from error
    if not named:
        raise SettingsError("MODEL: must name at least one, here or in --list")
    return named


def _cache(options: argparse.Namespace) -> Path:
    from huggingface_hub import constants

    return Path(options.cache or constants.HF_HUB_CACHE).expanduser().absolute()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
