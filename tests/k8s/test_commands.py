"""Commands for a cluster that the script for kind and the manual have: scripts are sound, and every flag exists."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from k8s.render.binaries import run
from tests.k8s.charts import RELEASE, of_kind, render

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "k8s" / "e2e.sh"
MANUAL = ROOT / "k8s" / "README.md"
OURS = {"values": ("helm", "upgrade")}
"""Arrays of the script, with the command whose flags they hold."""
FUNCTIONS = {"upgrade": ("helm", "upgrade")}
"""Functions of the script, with the command that they call with what they get."""
GLOBAL = ("-n", "--namespace")
"""Flags that may stand before a command's name."""


@functools.cache
def flags_of(program: str, command: str) -> frozenset[str]:
    """Return the flags that a program has for a command."""
    text = run(program, *command.split(), "--help")
    if program == "kubectl":
        text += run(program, "options")
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))


def statements(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a script, without what is between single quotes."""
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*$", "", text))
    joined = re.sub(r"'[^']*'", "quoted", joined)
    for line in re.split(r"\n|;|&&|\|\||\||\$\(|\bif |(?<!-)\bthen\b(?!-)|\{ ", joined):
        try:
            words = shlex.split(line.replace(")", " "), comments=True)
        except ValueError:
            words = line.split()
        yield words


def uses(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (program, command, flag) of everything that is called."""
    for words in statements(text):
        program, rest = _called(words)
        if program is None:
            continue
        command = program[1] or _command(rest)
        for word in rest:
            if word == "--":
                break
            if word.startswith("-") and not word.startswith("-o=") and len(word) > 1:
                yield program[0], command, word.partition("=")[0]
    for name, (program_name, command) in OURS.items():
        for block in re.findall(rf"{name}\+?=\(([^)]*)\)", text):
            for flag in re.findall(r"(?<!\S)--[\w-]+", block):
                yield program_name, command, flag


def _called(words: list[str]) -> tuple[tuple[str, str] | None, list[str]]:
    for number, word in enumerate(words):
        if word in ("helm", "kubectl"):
            return (word, ""), words[number + 1 :]
        if word in FUNCTIONS and number == 0:
            return FUNCTIONS[word], words[number + 1 :]
    return None, []


def _command(words: list[str]) -> str:
    names = [word for word in _without_global(words) if not word.startswith("-")]
    return " ".join(names[:2] if names[:1] == ["rollout"] else names[:1])


def _without_global(words: list[str]) -> Iterator[str]:
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in GLOBAL:
            skip = True
        else:
            yield word


def unknown(text: str) -> list[str]:
    """Return the flags that do not exist."""
    return sorted(
        {
            f"{program} {command} {flag}"
            for program, command, flag in uses(text)
            if flag not in GLOBAL and flag not in flags_of(program, command)
        }
    )


def manual_commands() -> str:
    """Return all commands of the manual: blocks of a console, and what stands between back quotes."""
    text = MANUAL.read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`((?:helm|kubectl) [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return "\n".join([*lines, *inline])


def test_the_shell_takes_the_script() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    checker = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([str(checker), str(SCRIPT)], capture_output=True, text=True, check=False)
    assert "" == done.stdout


@pytest.mark.parametrize("text", [SCRIPT.read_text(encoding="utf-8"), manual_commands()], ids=["script", "manual"])
def test_every_flag_exists(text: str) -> None:
    assert [] == unknown(text)


def test_a_flag_that_does_not_exist_is_found() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    wrong = text.replace("--rollback-on-failure", "--rollback-on-error").replace(
        "--delete-emptydir-data", "--delete-local"
    )
    wrong = wrong.replace("--set images.router.tag", "--sets images.router.tag").replace(
        "--server-side=true", "--ssa=true"
    )
    assert [
        "helm upgrade --rollback-on-error",
        "helm upgrade --sets",
        "helm upgrade --ssa",
        "kubectl drain --delete-local",
    ] == unknown(wrong)


def test_the_script_calls_what_it_promises() -> None:
    called = {(program, command) for program, command, _ in uses(SCRIPT.read_text(encoding="utf-8"))}
    wanted = {("helm", name) for name in ("upgrade", "rollback", "uninstall", "test")}
    assert wanted | {("kubectl", "drain"), ("kubectl", "delete"), ("kubectl", "scale")} <= called


def test_the_script_names_objects_that_the_chart_makes() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    scaled = ("--set=autoscaler.enabled=true", "--set=pools.demo.settings.autoscale.mode=advisory")
    secrets = ("--set=secrets.generate=true", "--set=secrets.generateOffline=true")
    objects = render("sim", *scaled, *secrets, "--set=pools.demo.settings.autoscale.max_replicas=2")
    made = {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in objects}
    for kind, name in re.findall(r"\b(deployment|rayservice|secret)/([\w-]+)", text):
        assert f"{kind}/{name}" in made
    for name in re.findall(r"get (?:secret|configmap) ([\w-]+)", text):
        assert {f"secret/{name}", f"configmap/{name}"} & made
    assert RELEASE == re.findall(r"^N=(\w+)$", text, re.MULTILINE)[0]


def test_pods_that_must_stay_are_bound_to_a_node_that_is_not_drained() -> None:
    nodes = yaml.safe_load((ROOT / "k8s" / "kind.yaml").read_text(encoding="utf-8"))["nodes"]
    roles = [node.get("labels", {}).get("role") for node in nodes]
    assert [None, "state", "drained"] == roles
    bound = re.findall(r"--set (\S+?)\.nodeSelector\.role=state", SCRIPT.read_text(encoding="utf-8"))
    assert ["redis.pod", "ray.head.pod"] == bound
    (redis,) = of_kind(render("sim", *(f"--set={part}.nodeSelector.role=state" for part in bound)), "StatefulSet")
    assert {"role": "state"} == redis["spec"]["template"]["spec"]["nodeSelector"]
