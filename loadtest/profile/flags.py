"""Flags of `penstock profile`."""

from __future__ import annotations

import argparse

from cluster.terminal.values import folder, whole
from router.commands.target import add_target_flags


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts an engine and measures it. With --target it measures the one replica of a running cluster, "
        "as clients see it. The replica must have no other load meanwhile."
    )
    add_target_flags(parser)
    parser.set_defaults(target=None)
    parser.add_argument("--settings", help="TOML file with the settings tree")
    parser.add_argument("--state-dir", type=folder, help="where profiles are kept (default ~/.penstock)")
    parser.add_argument("--pool", help="pool that is measured (default: the only one)")
    parser.add_argument("--engine", choices=("vllm", "sim"), help="engine of the pool")
    parser.add_argument("--model", help="local folder, hub id, or demo")
    parser.add_argument("--tp", type=whole(1), help="tensor parallel size")
    parser.add_argument("--rounds", type=whole(1), default=3, help="passes through the grid (default %(default)s)")
    parser.add_argument("--out", metavar="DIR", help="keep the profile below this folder instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_profile)


def _profile(options: argparse.Namespace) -> int:
    from loadtest.profile.command import run_profile

    return run_profile(options)
