"""The command `penstock`: finds the commands, runs one, and turns its errors into a line and an exit status."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence

import cluster
from cluster.errors import PenstockError
from cluster.terminal.command import CommandParser, registered_commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run `penstock` and return the exit status: 0 success, 1 failure, 2 wrong usage or settings."""
    parser = build_parser()
    _complete(parser)
    options = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As for standard error: a character that the locale lacks must not end an answer in the middle.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does.
        _drop_output()
        return 141
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _drop_output()
        _print_problem(f"the output can't be written: {error.strerror}")
        return 1
    except ModuleNotFoundError as error:
        hint = (
            "install an extra: penstock-llm[cpu] or penstock-llm[gpu] for a cluster, penstock-llm[router] for a "
            "router, penstock-llm[loadtest] to simulate, to plan and for load tests"
        )
        _print_problem(f"{error}; {hint}")
        return 2
    except PenstockError as error:
        _print_problem(error)
        return 2 if error.reason in ("SETTINGS", "SETUP", "TRACE") else 1


def _drop_output() -> None:
    """Discard further output, so that Python's flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_problem(problem: object) -> None:
    # Imported late: most commands end without a problem, and the import of rich takes a while.
    from cluster.terminal.console import print_problem

    print_problem(problem)


def build_parser(*, whole: bool = False) -> argparse.ArgumentParser:
    """Return a parser with all commands. The flags of a command are added when it is parsed; with `whole` at once, for
    documents and tests.
    """
    parser = argparse.ArgumentParser(prog="penstock", description="A distributed serving cluster for language models.")
    parser.add_argument("--version", action="version", version=f"penstock {cluster.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=CommandParser)
    for command in registered_commands():
        each: CommandParser = commands.add_parser(command.name, help=command.help)
        each.command = command
        if whole or command.name in _completed():
            each.load()
    return parser


def _completed() -> list[str]:
    """Return the words of a command line that a shell asks to complete; none in a normal call."""
    return os.environ.get("COMP_LINE", "").split() if "_ARGCOMPLETE" in os.environ else []


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, and end.

    `eval "$(register-python-argcomplete penstock)"` turns them on.
    """
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


if __name__ == "__main__":
    sys.exit(main())
