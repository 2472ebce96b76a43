"""The command `penstock`: finds the commands, runs one, and turns its errors into a line and an exit status."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import cluster
from cluster.cli.first_process import split_off
from cluster.errors import PenstockError
from cluster.terminal.command import (
    EXAMPLES,
    Command,
    CommandParser,
    Extra,
    Purpose,
    registered_commands,
    sentence,
)

_FIRST_STEPS = (
    "penstock up                                  start a cluster here",
    'penstock generate "What is the KV cache?"    ask it something, in another terminal',
    "penstock status                              see what it does",
)
_NEEDS = {
    Extra.CLUSTER: "pip install 'penstock-llm[cpu]', or 'penstock-llm[gpu]' for NVIDIA GPUs",
    Extra.ROUTER: "pip install 'penstock-llm[router]'",
    Extra.LOADTEST: "pip install 'penstock-llm[loadtest]'",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `penstock` and return the exit status: 0 success, 1 failure, 2 wrong usage or settings."""
    split_off()
    _open_missing_streams()
    words = sys.argv[1:] if argv is None else list(argv)
    parser = build_parser()
    _complete(parser)
    if not words:
        parser.print_help(sys.stderr)
        return 2
    try:
        return _run(parser, words)
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
        _print_problem(_missing(words[0], error))
        return 2
    except PenstockError as error:
        _print_problem(error)
        return 2 if error.reason in ("SETTINGS", "SETUP", "TRACE") else 1


def _run(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    options = parser.parse_args(words)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As for standard error: a character that the locale lacks must not end an answer in the middle.
        sys.stdout.reconfigure(errors="backslashreplace")
    if hasattr(options, "target"):
        # gRPC's own log would come between the lines of a command that calls a router, which report its errors.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    status = int(options.run(options))
    sys.stdout.flush()
    return status


def _open_missing_streams() -> None:
    """Open the null device where the caller closed a standard stream. Otherwise a file that is opened later would take
    its number, and Python has no object for it. Standard input stays None in Python, so that who reads it can say so.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as above


def _missing(name: str, error: ModuleNotFoundError) -> str:
    extra = next((each.extra for each in registered_commands() if each.name == name), Extra.NONE)
    if not extra:
        return f"{error}; is penstock-llm installed as a whole?"
    return f"`penstock {name}` needs more packages ({error}): {_NEEDS[extra]}"


def _drop_output() -> None:
    """Discard further output, so that Python's flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_problem(problem: object) -> None:
    # Imported late: most commands end without a problem, and the import of rich takes a while.
    from cluster.terminal.console import print_problem

    print_problem(problem)


class _PenstockParser(CommandParser):
    """Parser of the whole command line. Its help lists commands by purpose."""

    def format_help(self) -> str:
        found = registered_commands()
        width = max(len(each.name) for each in found)
        lists = [_list(purpose, [each for each in found if each.purpose is purpose], width) for purpose in Purpose]
        first = "\n".join((EXAMPLES, *(f"  {line}" for line in _FIRST_STEPS)))
        return "\n\n".join(
            (
                "usage: penstock COMMAND [flags]",
                f"{self.description}",
                *lists,
                first,
                "`penstock COMMAND --help` shows a command's flags, `penstock --version` the version.\n",
            )
        )


def _list(purpose: Purpose, commands: Sequence[Command], width: int) -> str:
    return "\n".join((f"{purpose}:", *(f"  {each.name:<{width}}  {each.help}" for each in commands)))


def build_parser(*, whole: bool = False) -> argparse.ArgumentParser:
    """Return a parser with all commands. The flags of a command are added when it is parsed; with `whole` at once, for
    documents and tests.
    """
    parser = _PenstockParser(prog="penstock", description="A distributed serving cluster for language models.")
    parser.add_argument("--version", action="version", version=f"penstock {cluster.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=CommandParser)
    for command in registered_commands():
        each: CommandParser = commands.add_parser(command.name, help=command.help, description=sentence(command.help))
        each.command = command
        if whole or command.name in _completed():
            each.load()
    return parser


def _completed() -> list[str]:
    """Return the words of a command line that a shell asks to complete; none in a normal call."""
    return os.environ.get("COMP_LINE", "").split() if "_ARGCOMPLETE" in os.environ else []


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, and end. `penstock completion` prints the script that makes it ask."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


if __name__ == "__main__":
    sys.exit(main())
