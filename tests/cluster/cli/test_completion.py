"""`penstock completion`: the script that a shell runs, and what it then completes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.cli.main import main


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_of_the_shell(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["completion", shell])
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    assert "penstock" in script.read_text(encoding="utf-8")
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed, so its syntax is not checked")
    subprocess.run([program, "-n", str(script)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "found"),
    [("penstock gene", "generate"), ("penstock jobs su", "submit"), ("penstock logs --fo", "--follow")],
)
def test_bash_completes_with_it(typed: str, found: str) -> None:
    words = typed.split()
    steps = (
        'eval "$(penstock completion bash)"',
        f"COMP_LINE='{typed}' COMP_POINT={len(typed)} COMP_WORDS=({typed}) COMP_CWORD={len(words) - 1} COMP_TYPE=9",
        f"_python_argcomplete penstock {words[-1]} {words[-2]}",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "\n".join(steps)], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert [found] == done.stdout.split()
