"""Flags of `penstock demo`. What it runs is imported when it runs."""

from __future__ import annotations

import argparse

from cluster.cli.options import add_cluster_flags


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_cluster_flags(parser)
    parser.add_argument(
        "--engine",
        choices=("vllm", "sim"),
        default="vllm",
        help="engine to start; sim imitates one (default %(default)s)",
    )
    parser.add_argument(
        "--prompt", metavar="TEXT", default="What is Penstock?", help="the question (default: %(default)s)"
    )
    parser.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    from cluster.cli.demo import run_demo

    return run_demo(options)
