"""Flags of `penstock up`. What it runs is imported when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from cluster.cli.options import add_cluster_flags, add_pool_flags
from cluster.ready_file import READY_FLAG
from cluster.terminal.command import show_examples
from cluster.terminal.values import whole

CONSOLE_PORT = 8080


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_cluster_flags(parser)
    add_pool_flags(parser)
    parser.add_argument(
        "--console",
        type=whole(0, 65535),
        nargs="?",
        const=CONSOLE_PORT,
        metavar="PORT",
        help=f"also open the console, a page for this machine's users (default {CONSOLE_PORT} if it is free)",
    )
    parser.add_argument(
        READY_FLAG, type=Path, metavar="FILE", help="written as JSON once the cluster serves: its target and pools"
    )
    parser.add_argument("--until-eof", action="store_true", help="stop when standard input ends, as its writer does")
    show_examples(
        parser,
        "penstock up",
        "penstock up --model /models/llama-8b --tp 2 --replicas 2",
        "penstock up --engine sim --port 50060 --state-dir /tmp/second",
        "penstock up --settings cluster.toml --console",
    )
    parser.set_defaults(run=_up)


def _up(options: argparse.Namespace) -> int:
    from cluster.cli.up import run_up

    return run_up(options)
