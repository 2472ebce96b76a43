"""Flags of `penstock profile`."""

from __future__ import annotations

import argparse

from cluster.terminal.command import show_examples
from cluster.terminal.values import folder, whole
from router.commands.target import add_target_flags


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Start an engine and measure the time of its steps, for `penstock plan --profile`. With --target, measure the "
        "only replica of a running cluster, as its clients see it. The replica must have no other load meanwhile."
    )
    parser.add_argument("--settings", metavar="FILE", help="TOML file with the settings")
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="where profiles are kept (default ~/.penstock)")
    parser.add_argument("--pool", metavar="NAME", help="pool to measure (default: the only one)")
    parser.add_argument("--engine", choices=("vllm", "sim"), help="engine of the pool")
    parser.add_argument("--model", help="local folder, hub id, s3:// URL, or demo")
    parser.add_argument("--tp", type=whole(1), metavar="N", help="tensor parallel size")
    parser.add_argument(
        "--rounds", type=whole(1), metavar="N", default=3, help="how often each load is measured (default %(default)s)"
    )
    parser.add_argument("--out", metavar="DIR", help="keep the profile below this folder instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_target_flags(parser, None, "measure the replica behind this router (default: start an engine)")
    show_examples(
        parser,
        "penstock profile --model /models/llama-8b",
        "penstock profile --target 127.0.0.1:50051",
        "penstock plan --profile PROFILE.json --rate 5",
    )
    parser.set_defaults(run=_profile)


def _profile(options: argparse.Namespace) -> int:
    from loadtest.profile.command import run_profile

    return run_profile(options)
