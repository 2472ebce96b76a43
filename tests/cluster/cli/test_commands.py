"""Commands register themselves, and cost nothing until they run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.cli.main import build_parser
from cluster.terminal.command import registered_commands

HEAVY = ("asyncio", "rich", "grpc", "google.protobuf", "pydantic", "redis", "locust")


def test_every_command_has_a_name_of_its_own_and_one_line_of_help() -> None:
    commands = registered_commands()
    assert len(commands) == len({command.name for command in commands})
    assert [] == [command.name for command in commands if not command.help or command.help[0].isupper()]


@pytest.mark.parametrize("name", [command.name for command in registered_commands()])
def test_every_command_describes_its_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        build_parser().parse_args([name, "--help"])
    assert f"usage: penstock {name}" in capsys.readouterr().out


@pytest.mark.slow
def test_the_list_of_commands_loads_none_of_them() -> None:
    code = f"""
import sys
from cluster.cli.main import main
try:
    main(["--help"])
except SystemExit:
    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]\n" == done.stderr


@pytest.mark.slow
def test_flags_load_no_grpc() -> None:
    """It reads the variable for its own log when it is loaded, and `main` sets that once the flags are read."""
    code = (
        "import sys; from cluster.cli.main import build_parser; build_parser(whole=True); print('grpc' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "False\n" == done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "extra"], "penstock status: unexpected argument 'extra'\nsee `penstock status --help`\n"),
        (
            ["jobs", "list", "a", "b"],
            "penstock jobs list: unexpected arguments 'a', 'b'\nsee `penstock jobs list --help`\n",
        ),
    ],
)
def test_the_command_that_does_not_know_an_argument_says_so(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args(words)
    assert said == capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("penstock gen", {"generate "}),
        ("penstock generate --max", {"--max-tokens "}),
        ("penstock jobs wa", {"watch "}),
        ("penstock generate --class ", {"interactive", "standard", "batch"}),
    ],
)
def test_a_shell_completes_commands_flags_and_values(line: str, found: set[str], tmp_path: Path) -> None:
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "|", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    answer = tmp_path / "answer"
    command = f"{Path(sys.executable).with_name('penstock')} 8>{answer} 9>/dev/null"
    subprocess.run(["sh", "-c", command], env={**os.environ, **asked}, check=True)
    assert found == set(answer.read_text().split("|"))
