"""The examples in the documents run as they are printed, as far as that can be told without a cluster."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from google.protobuf import json_format, message_factory

from cluster.cli.main import build_parser
from cluster.settings import Settings
from penstock.v1 import inference_pb2

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    *sorted(
        path.relative_to(ROOT).as_posix()
        for room in ("cluster", "deployments", "k8s", "loadtest", "proto", "router")
        for path in (ROOT / room).rglob("README.md")
        if "node_modules" not in path.parts
    ),
)
SERVICES = inference_pb2.DESCRIPTOR.services_by_name


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS]
    fenced = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [block for text in texts for block in fenced.findall(text)]


def commands(program: str) -> list[list[str]]:
    """Return the arguments of every call of a program."""
    found = []
    for block in blocks("console"):
        for line in block.replace("\\\n", " ").splitlines():
            # What a shell connects with the program's standard input and output is no argument.
            for call in line.removeprefix("$ ").partition("<<<")[0].partition(" > ")[0].split(" && "):
                words = shlex.split(call, comments=True)
                if words and Path(words[0]).name == program:
                    found.append(words[1:])
    return found


@pytest.mark.parametrize("arguments", commands("penstock"), ids=" ".join)
def test_commands_have_the_flags_that_are_shown(arguments: list[str]) -> None:
    build_parser(whole=True).parse_args(arguments)


@pytest.mark.parametrize("arguments", commands("grpcurl"), ids=lambda each: each[-1])
def test_grpcurl_sends_messages_that_the_api_has(arguments: list[str]) -> None:
    service, _, method = arguments[-1].partition("/")
    body = arguments[arguments.index("-d") + 1] if "-d" in arguments else "{}"
    sent = SERVICES[service.removeprefix("penstock.v1.")].methods_by_name[method].input_type
    json_format.Parse(body, message_factory.GetMessageClass(sent)())


@pytest.mark.parametrize("block", blocks("toml"), ids=len)
def test_settings_that_are_shown_are_good(block: str) -> None:
    Settings.model_validate(tomllib.loads(block))


@pytest.mark.parametrize("block", blocks("python"), ids=len)
def test_python_that_is_shown_compiles_and_imports_what_there_is(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert [] == [alias.name for alias in node.names if not hasattr(module, alias.name)]


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS]
    named = {name for text in texts for name in re.findall(r"(?:`|\$ )make ([a-z-]+)\b(?!-?\*)", text)}
    assert set() == {name for name in named if not name.endswith("-")} - targets


def test_modules_that_are_run_exist() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS]
    modules = {module for text in texts for module in re.findall(r"python -m ([a-z_.]+)", text)}
    assert {"router"} <= modules
    assert [] == sorted(module for module in modules if importlib.util.find_spec(module) is None)


def test_tests_that_are_named_exist() -> None:
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS)
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [] == [name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in tests]
