"""Parses the command line and hands over; every command imports what it needs only when it runs."""

from __future__ import annotations

import argparse
import datetime
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import TypeAlias

import cluster
from cluster.cli.autoscaler import add_autoscaler
from cluster.cli.console import print_problem
from cluster.cli.decisions import add_decisions
from cluster.cli.jobs import add_jobs
from cluster.cli.loadtest import add_loadtest
from cluster.cli.operating_point import add_operating_point
from cluster.cli.plan import add_plan, add_profile
from cluster.cli.simulate import add_simulate
from cluster.cli.target import add_target_flags
from cluster.cli.values import folder, time_of, word
from cluster.errors import PenstockError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `penstock`; returns the exit status: 0 well, 1 failed, 2 wrong usage or settings."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As standard error has it: a letter that the locale lacks ends no answer in the middle.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read has enough, as `head` does.
        _drop_output()
        return 141
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _drop_output()
        print_problem(f"the output can't be written: {error.strerror}")
        return 1
    except ModuleNotFoundError as error:
        hint = (
            "install an extra: penstock-llm[cpu] or penstock-llm[gpu] for a cluster, penstock-llm[router] for a "
            "router, penstock-llm[loadtest] to simulate, to plan and for load tests"
        )
        print_problem(f"{error}; {hint}")
        return 2
    except PenstockError as error:
        print_problem(error)
        return 2 if error.reason in ("SETTINGS", "SETUP", "TRACE") else 1


def _drop_output() -> None:
    """Keep Python from complaining once more when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> argparse.ArgumentParser:
    """Describe all commands and flags."""
    parser = argparse.ArgumentParser(prog="penstock", description="A distributed serving cluster for language models.")
    parser.add_argument("--version", action="version", version=f"penstock {cluster.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_up(commands)
    _add_demo(commands)
    _add_generate(commands)
    add_jobs(commands)
    _add_status(commands)
    _add_usage(commands)
    _add_down(commands)
    _add_keys(commands)
    add_simulate(commands)
    add_decisions(commands)
    add_operating_point(commands)
    add_autoscaler(commands)
    add_loadtest(commands)
    add_profile(commands)
    add_plan(commands)
    return parser


def _add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settings", type=word, help="TOML file with the settings tree")
    parser.add_argument("--state-dir", type=folder, help="where Redis, the secret and logs live (default ~/.penstock)")


def _add_up(commands: Commands) -> None:
    parser = commands.add_parser("up", help="start a whole cluster on this machine; stays until Ctrl-C")
    _add_cluster_flags(parser)
    parser.add_argument("--engine", choices=("vllm", "sim"), help="engine of the pool")
    parser.add_argument("--model", type=word, help="local folder, hub id, or demo")
    parser.add_argument(
        "--pool",
        type=word,
        help="pool that the flags describe; its name is the model's name in requests (default: the only one)",
    )
    parser.add_argument("--tp", type=int, help="tensor parallel size")
    parser.add_argument("--replicas", type=int, help="number of replicas")
    parser.add_argument("--redis-url", type=word, help="an existing Redis instead of the embedded one")
    parser.add_argument("--port", type=int, help="gRPC port (default 50051)")
    parser.add_argument("--routers", type=int, help="router processes that share the port")
    parser.set_defaults(run=_up)


def _add_demo(commands: Commands) -> None:
    parser = commands.add_parser("demo", help="start a cluster, answer one prompt, stop it again")
    _add_cluster_flags(parser)
    parser.add_argument("--engine", choices=("vllm", "sim"), default="vllm")
    parser.add_argument("--prompt", default="What is Penstock?")
    parser.set_defaults(run=_demo)


def _add_generate(commands: Commands) -> None:
    parser = commands.add_parser("generate", help="send a prompt and stream the answer")
    add_target_flags(parser)
    parser.add_argument("prompt", help="the prompt; - reads it from standard input")
    parser.add_argument("--model", help="model name (default: the only one)")
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user's chat message")
    parser.add_argument("--system", help="system message; implies --chat")
    parser.add_argument("--lora-adapter", default="", metavar="NAME", help="one of the model's adapters")
    parser.add_argument(
        "--class", dest="request_class", choices=("interactive", "standard", "batch"), default="standard",
        help="how urgent it is (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object per event")
    parser.add_argument("--timeout", type=time_of, default=120.0, help="deadline in seconds (default %(default)s)")
    for flag, kind, text in SAMPLING_FLAGS:
        parser.add_argument(f"--{flag}", type=kind, help=text)
    parser.add_argument("--stop", action="append", default=[], help="stop string; may be given several times")
    parser.add_argument("--ignore-eos", action="store_true", help="go on past the end-of-sequence token")
    constraint = parser.add_mutually_exclusive_group()
    constraint.add_argument(
        "--json-schema", metavar="JSON", help="constrain the output to this JSON Schema, or to that of @FILE"
    )
    constraint.add_argument("--regex", help="constrain the output to this regular expression")
    constraint.add_argument("--choice", action="append", default=[], help="allowed answer; may be given several times")
    parser.set_defaults(run=_generate)


SAMPLING_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("max-tokens", int, "most output tokens"),
    ("min-tokens", int, "fewest output tokens"),
    ("temperature", float, "0 is greedy"),
    ("top-p", float, "nucleus sampling"),
    ("top-k", int, "keep the k most likely tokens"),
    ("min-p", float, "drop tokens less likely than this times the most likely"),
    ("presence-penalty", float, "-2 to 2"),
    ("frequency-penalty", float, "-2 to 2"),
    ("repetition-penalty", float, "above 0 to 2"),
    ("seed", int, "seeds the draws"),
    ("logprobs", int, "alternatives per token, 0 to 20; shown with --json"),
    ("n", int, "number of choices"),
)


def _add_status(commands: Commands) -> None:
    parser = commands.add_parser("status", help="show pools, replicas and routers")
    add_target_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_status)


def _add_usage(commands: Commands) -> None:
    parser = commands.add_parser("usage", help="show tokens, accelerator time and cost by day, pool and tenant")
    add_target_flags(parser)
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--tenant", default="", help="another tenant, for operators (default: the key's own)")
    whose.add_argument("--all-tenants", action="store_true", help="every tenant, for operators")
    parser.add_argument("--pool", default="", help="one pool (default: all)")
    for flag, default in (("--first-day", "as far back as it is kept"), ("--last-day", "today")):
        parser.add_argument(flag, type=_day, metavar="DAY", help=f"such as 2026-01-31 (default: {default})")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_usage)


def _day(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a day such as 2026-01-31, got {text!r}") from None


def _add_down(commands: Commands) -> None:
    parser = commands.add_parser("down", help="stop the cluster that `penstock up` started")
    parser.add_argument("--settings", help="the TOML file given to `penstock up`")
    parser.add_argument(
        "--state-dir", type=folder, help="the state folder (default: that of the settings, ~/.penstock)"
    )
    parser.set_defaults(run=_down)


def _add_keys(commands: Commands) -> None:
    keys = commands.add_parser("keys", help="make and check API keys")
    actions = keys.add_subparsers(title="actions", required=True, metavar="ACTION")
    new = actions.add_parser("new", help="print a new key and add its hash to the keys file")
    check = actions.add_parser("check", help="check the keys file, or one key")
    for parser in (new, check):
        parser.add_argument("--file", help="the keys file (default: the setting auth.keys_file)")
        parser.add_argument("--settings", help="TOML file with the settings tree")
    new.add_argument("--tenant", required=True, help="whose requests and quotas the key's calls are")
    new.add_argument("--role", choices=("user", "operator", "admin"), default="user", help="default %(default)s")
    new.add_argument("--models", metavar="A,B", help="models it may use (default: all)")
    new.add_argument("--classes", metavar="A,B", help="of interactive, standard and batch (default: all)")
    new.add_argument("--not-before", metavar="WHEN", help="when it begins to count (default: at once)")
    new.add_argument("--expires", metavar="WHEN", help="such as 90d or 2027-01-31T12:00 (default: never)")
    new.set_defaults(run=_keys_new)
    check.add_argument("--stdin", action="store_true", help="read one key from standard input and look it up")
    check.set_defaults(run=_keys_check)


def _up(options: argparse.Namespace) -> int:
    from cluster.cli.up import run_up

    return run_up(options)


def _demo(options: argparse.Namespace) -> int:
    from cluster.cli.demo import run_demo

    return run_demo(options)


def _generate(options: argparse.Namespace) -> int:
    from cluster.cli.generate import run_generate

    return run_generate(options)


def _status(options: argparse.Namespace) -> int:
    from cluster.cli.status import run_status

    return run_status(options)


def _usage(options: argparse.Namespace) -> int:
    from cluster.cli.usage import run_usage

    return run_usage(options)


def _keys_new(options: argparse.Namespace) -> int:
    from cluster.cli.keys import run_new

    return run_new(options)


def _keys_check(options: argparse.Namespace) -> int:
    from cluster.cli.keys import run_check

    return run_check(options)


def _down(options: argparse.Namespace) -> int:
    from cluster.cli.up import run_down

    return run_down(options)


if __name__ == "__main__":
    sys.exit(main())
