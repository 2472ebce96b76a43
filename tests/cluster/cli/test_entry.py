"""The installed command `penstock`, as the installer's script calls it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3] / "pyproject.toml"
CTRL_C_AT_IMPORT = """
import signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {imported!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from {module} import {function}
sys.exit({function}())
"""


@pytest.mark.parametrize("imported", ["argparse", "cluster.errors", "cluster.terminal.command", "rich", "grpc"])
def test_ctrl_c_while_modules_are_imported_ends_it_in_silence(imported: str) -> None:
    """The first three come with the command line, the others with the command."""
    script = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["scripts"]["penstock"]
    module, _, function = script.partition(":")
    code = CTRL_C_AT_IMPORT.format(module=module, function=function, imported=imported)
    words = [sys.executable, "-c", code, "status", "--target", "127.0.0.1:1"]
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    assert (130, "", "") == (ended.returncode, ended.stdout, ended.stderr)
