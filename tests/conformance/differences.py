"""Known differences of another server, and the table of them in the README.

Run as a module, it writes the table.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
VLLM, README = FOLDER / "vllm.toml", FOLDER / "README.md"
BEGIN, END = "<!-- table of vllm.toml: begin -->", "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Difference:
    """Tests that the other server fails, and why."""

    title: str
    cases: tuple[str, ...]
    """Names as `test_chat.py::test_name`, for a test with all its parameters, or with a pattern of some in brackets."""
    ours: str
    theirs: str
    why: str
    """Why Penstock keeps the difference."""

    def is_about(self, file: str, name: str) -> bool:
        """Return whether the test `name` of a file is one of these."""
        test, _, parameters = name.partition("[")
        for case in self.cases:
            place, _, pattern = case.removesuffix("]").partition("[")
            # In parameters a bracket is a plain character.
            wanted = pattern.replace("[", "[[]") or "*"
            if place == f"{file}::{test}" and fnmatch.fnmatchcase(parameters.removesuffix("]"), wanted):
                return True
        return False


def read_differences(path: Path) -> list[Difference]:
    """Read a file of differences."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))["difference"]
    return [Difference(**{**each, "cases": tuple(each["cases"])}) for each in found]


def table(differences: Iterable[Difference]) -> str:
    """Return differences as a table in Markdown."""
    rows = [
        f"| {each.title} | {each.ours} | {each.theirs} | {each.why} | {_names(each.cases)} |" for each in differences
    ]
    return "\n".join(["| what | Penstock | vLLM | why | cases |", "| --- | --- | --- | --- | --- |", *rows])


def with_table(text: str, rendered: str) -> str:
    """Return the README's text with this table."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{rendered}\n{END}{rest.split(END, 1)[1]}"


def _names(cases: Iterable[str]) -> str:
    names: dict[str, list[str]] = {}
    for case in cases:
        file, _, test = case.partition("[")[0].partition("::")
        names.setdefault(file, []).append(test.removeprefix("test_").replace("_", " "))
    return "; ".join(f"`{file}`: {', '.join(dict.fromkeys(tests))}" for file, tests in names.items())


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8"), table(read_differences(VLLM))), encoding="utf-8")
