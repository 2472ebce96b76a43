"""AIConfigurator of NVIDIA's Dynamo: its package in a virtual environment of its own, and its answers for measured
points.
"""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from loadtest.benchmarks.rivals.reasons import short

PACKAGE = "aiconfigurator==0.12.0"
_SCRIPT = Path(__file__).with_name("estimate.py")
_PARALLEL = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")

Question: TypeAlias = Mapping[str, Any]
Run: TypeAlias = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, slots=True)
class Answer:
    """Times of a point in seconds, or why there are none."""

    ttft_s: float = math.nan
    tpot_s: float = math.nan
    why: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to all questions, in their order."""

    version: str
    each: Sequence[Answer]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def installed(folder: Path, run: Run = _run) -> Path | str:
    """Return a Python that has the package, from a virtual environment that is made where it is missing; or why there
    is none.
    """
    python = folder / "bin" / "python"
    if python.exists() and run([str(python), "-c", "import aiconfigurator.cli.api"]).returncode == 0:
        return python
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE],
        [str(python), "-c", "import aiconfigurator.cli.api"],
    ):
        try:
            done = run(command)
        except OSError as error:
            return short(f"{command[0]}: {error.strerror or error}")
        if done.returncode:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            return short(lines[-1] if lines else f"{command[0]} ended with status {done.returncode}")
    return python


def questions(path: Path) -> list[Question]:
    """Return what to ask about each row of a file of points, as its columns have it: lengths and clients of a group by
    name, not as `measured.recipes` knows better.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        return [_question(row) for row in csv.DictReader(file)]


def _question(row: Mapping[str, str]) -> Question:
    asked: dict[str, Any] = {
        "model_path": row["model_path"],
        "system_name": row["system"],
        "backend_name": "vllm",
        "isl": int(float(row["isl"])),
        "osl": int(float(row["osl"])),
        "batch_size": int(float(row["batch_size"])),
    }
    asked |= {name: int(float(row[name])) for name in _PARALLEL if row.get(name)}
    if modes := _modes(row["model_path"].lower(), row["precision"].lower()):
        asked |= dict(zip(("gemm_quant_mode", "moe_quant_mode"), modes, strict=True))
    return asked


def _modes(model: str, precision: str) -> tuple[str, str] | None:
    """Return the names that the package has for a precision of dense weights and of experts; None where the published
    weights tell it.
    """
    if "gpt-oss" in model:
        return None
    return {"fp8": ("fp8", "fp8"), "fp4": ("nvfp4", "nvfp4")}.get(precision)


def ask(python: Path, asked: Sequence[Question], tell: Callable[[int], None] = lambda _: None) -> Answers | str:
    """Return the answers to questions; or why there are none.

    Args:
        python: has the package.
        asked: the questions.
        tell: called with the number of answers so far.
    """
    # The package logs a lot, and a full pipe would stop it.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            [str(python), "-P", str(_SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        with process:
            lines = []
            for line in _exchange(process, asked):
                lines.append(json.loads(line))
                tell(len(lines) - 1)
        if len(lines) != 1 + len(asked):
            log.seek(0)
            said = log.read().strip().splitlines()
            return short(said[-1] if said else f"it ended with status {process.returncode}")
    return Answers(str(lines[0]["version"]), [_answer(line) for line in lines[1:]])


def _exchange(process: subprocess.Popen[str], asked: Sequence[Question]) -> Iterator[str]:
    """Send one question after the other. Yield what comes back, the first line without a question."""
    if process.stdin is None or process.stdout is None:
        return
    for question in (None, *asked):
        if question is not None:
            try:
                process.stdin.write(json.dumps(question) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                return
        line = process.stdout.readline()
        if not line:
            return
        yield line
    process.stdin.close()


def _answer(line: Mapping[str, Any]) -> Answer:
    if "why" in line:
        return Answer(why=short(str(line["why"])))
    ttft, tpot = float(line["ttft_ms"]) / 1e3, float(line["tpot_ms"]) / 1e3
    if not (0 < ttft < math.inf and 0 < tpot < math.inf):
        return Answer(why=f"no times above 0: TTFT {1e3 * ttft:g} ms, TPOT {1e3 * tpot:g} ms")
    return Answer(ttft, tpot)
