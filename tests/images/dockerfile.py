"""A strict reader of the images' files. It knows the instructions that they have, and refuses any other."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

KNOWN = ("ARG", "FROM", "WORKDIR", "RUN", "COPY", "LABEL", "ENV", "USER", "EXPOSE", "CMD")
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


class DockerfileError(Exception):
    """A line that the reader does not know, or that can't be right."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its continued lines joined."""

    line: int
    name: str
    text: str

    def words(self) -> list[str]:
        """Return its words, as a shell would cut them."""
        return shlex.split(self.text)

    def pairs(self) -> dict[str, str]:
        """Return the names and values of ENV, LABEL or ARG."""
        found = {}
        for word in self.words():
            name, equals, value = word.partition("=")
            if not equals or not name:
                raise DockerfileError(f"line {self.line}: {self.name} needs NAME=VALUE, got {word!r}")
            found[name] = value
        return found


@dataclass(frozen=True, slots=True)
class Copy:
    """COPY: what goes where."""

    stage: str
    """Stage that it comes from; empty for the build's context."""
    sources: tuple[str, ...]
    to: str


@dataclass(slots=True)
class Stage:
    """One stage of a file."""

    base: str
    """Image or stage, with the variables replaced."""
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def last(self, name: str) -> Instruction | None:
        """Return the last instruction of a kind."""
        return next((each for each in reversed(self.instructions) if each.name == name), None)

    def copies(self) -> Iterator[Copy]:
        """Yield what is copied."""
        yield from (copy_of(each) for each in self.instructions if each.name == "COPY")


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A whole file."""

    arguments: Mapping[str, str]
    """Build arguments before the first stage, with their defaults."""
    stages: tuple[Stage, ...]

    def stage(self, name: str) -> Stage | None:
        """Return the stage of a name."""
        return next((each for each in self.stages if each.name == name), None)

    def runs(self) -> list[Instruction]:
        """Return all RUN instructions."""
        return [each for stage in self.stages for each in stage.instructions if each.name == "RUN"]


def read(path: Path, given: Mapping[str, str] | None = None) -> Dockerfile:
    """Read a file.

    Args:
        path: the file.
        given: values of build arguments instead of their defaults.

    Raises:
        DockerfileError: names the line and what is wrong with it.
    """
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for each in _instructions(path.read_text(encoding="utf-8")):
        if each.name == "FROM":
            base, name = _from(each, arguments)
            if any(stage.name == name for stage in stages):
                raise DockerfileError(f"line {each.line}: there is a stage {name!r} already")
            stages.append(Stage(base, name))
        elif stages:
            stages[-1].instructions.append(each)
            _check(each, stages)
        elif each.name == "ARG":
            arguments |= each.pairs()
            arguments |= {name: value for name, value in (given or {}).items() if name in arguments}
        else:
            raise DockerfileError(f"line {each.line}: {each.name} before the first FROM")
    if not stages:
        raise DockerfileError("no FROM")
    return Dockerfile(arguments, tuple(stages))


def copy_of(instruction: Instruction) -> Copy:
    """Read a COPY.

    Raises:
        DockerfileError: it has another flag than --from, or no target.
    """
    words = instruction.words()
    flags = [word for word in words if word.startswith("--")]
    rest = [word for word in words if not word.startswith("--")]
    if any(not flag.startswith("--from=") for flag in flags) or len(rest) < 2:
        raise DockerfileError(f"line {instruction.line}: COPY {instruction.text}")
    stage = flags[0].removeprefix("--from=") if flags else ""
    return Copy(stage, tuple(rest[:-1]), rest[-1])


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace variables outside of RUN, whose shell does it itself.

    Raises:
        DockerfileError: there is none of that name.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in variables:
            raise DockerfileError(f"no variable {name}")
        return variables[name]

    return _VARIABLE.sub(value, text)


def command_of(stage: Stage) -> list[str]:
    """Return the program that the image starts, of CMD's JSON form.

    Raises:
        DockerfileError: there is none, or it is a shell's.
    """
    found = stage.last("CMD")
    if found is None:
        raise DockerfileError("no CMD")
    try:
        words = json.loads(found.text)
    except ValueError as error:
        raise DockerfileError(f"line {found.line}: CMD must be a JSON list") from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DockerfileError(f"line {found.line}: CMD must be a JSON list of texts")
    return words


def _instructions(text: str) -> Iterator[Instruction]:
    joined, begun = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.rstrip()
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        begun = begun if joined else number
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield _instruction(joined + line, begun)
        joined = ""
    if joined:
        raise DockerfileError(f"line {begun}: its last line continues nowhere")


def _instruction(line: str, number: int) -> Instruction:
    name, _, text = line.strip().partition(" ")
    if name not in KNOWN:
        raise DockerfileError(f"line {number}: {name} is not one of {', '.join(KNOWN)}")
    if not text.strip() or "<<" in text:
        raise DockerfileError(f"line {number}: {name} without a value, or with a here-document")
    return Instruction(number, name, text.strip())


def _from(instruction: Instruction, arguments: Mapping[str, str]) -> tuple[str, str]:
    words = instruction.words()
    if len(words) not in (1, 3) or (len(words) == 3 and words[1] != "AS"):
        raise DockerfileError(f"line {instruction.line}: FROM {instruction.text}")
    return expand(words[0], arguments), words[2] if len(words) == 3 else ""


def _check(instruction: Instruction, stages: list[Stage]) -> None:
    if instruction.name in ("ENV", "LABEL", "ARG"):
        instruction.pairs()
    elif instruction.name == "COPY":
        stage = copy_of(instruction).stage
        if stage and stage not in [each.name for each in stages[:-1]]:
            raise DockerfileError(f"line {instruction.line}: no stage {stage!r} before")
    elif instruction.name == "CMD":
        command_of(stages[-1])
