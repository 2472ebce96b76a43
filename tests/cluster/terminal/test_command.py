"""Help, and the answers to mistakes on the command line."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cli.main import build_parser, main
from cluster.terminal.command import EXAMPLES, Purpose, registered_commands

ACCESS = "cluster, key and TLS"


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and all below it."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from parsers(each)


ALL = {each.prog: each for each in parsers(build_parser(whole=True))}


def wrong(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a wrong command line gets."""
    with pytest.raises(SystemExit) as caught:
        main(shlex.split(line))
    assert 2 == caught.value.code
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("generate --temprature 0 x", "penstock generate: unknown flag --temprature; did you mean --temperature?"),
        ("generate x --temprature=0", "penstock generate: unknown flag --temprature; did you mean --temperature?"),
        ("generate x --zzz", "penstock generate: unknown flag --zzz"),
        ("generate x -t 0", "penstock generate: unknown flag -t"),
        ("generate", "penstock generate: the following arguments are required: PROMPT"),
        ("genrate x", "penstock: unknown command 'genrate'; did you mean generate?"),
        ("--verison", "penstock: unknown flag --verison; did you mean --version?"),
        ("jobs sumbit x", "penstock jobs: unknown command 'sumbit'; did you mean submit?"),
        ("jobs xyz", "penstock jobs: unknown command 'xyz'; one of submit, watch, results, list, get, cancel, delete"),
        ("jobs get id --jsno", "penstock jobs get: unknown flag --jsno"),
        (
            "generate x --class interactiv",
            "penstock generate: argument --class: must be one of interactive, standard, batch, got 'interactiv'; "
            "did you mean interactive?",
        ),
    ],
)
def test_a_mistake_gets_a_line_and_a_pointer(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = said.partition(":")[0]
    assert f"{said}\nsee `{where} --help`\n" == wrong(line, capsys)


@pytest.mark.parametrize(
    ("words", "prompt"),
    [
        (["a - b"], "a - b"),
        (["-- is a dash"], "-- is a dash"),
        (["--", "--temprature"], "--temprature"),
        (["-5"], "-5"),
        (["--temp", "0", "x"], "x"),
    ],
)
def test_a_prompt_is_no_flag(words: list[str], prompt: str) -> None:
    assert prompt == build_parser().parse_args(["generate", *words]).prompt


def test_nothing_at_all_gets_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main([])
    assert capsys.readouterr().err.startswith("usage: penstock COMMAND [flags]\n")


def test_the_list_has_every_command_under_its_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    heads = [said.index(f"\n{purpose}:\n") for purpose in Purpose]
    assert sorted(heads) == heads
    for command in registered_commands():
        begin = said.index(f"\n  {command.name} ")
        head = max(each for each in heads if each < begin)
        assert said[head:].startswith(f"\n{command.purpose}:\n")


@pytest.mark.parametrize("name", sorted(ALL))
def test_help_is_complete(name: str) -> None:
    """Every command has a sentence, and every flag a text; keys and TLS come last."""
    parser = ALL[name]
    assert (parser.description or "").endswith(".")
    actions = [each for each in parser._actions if not isinstance(each, argparse._SubParsersAction)]
    assert [] == [each.dest for each in actions if not each.help or each.help.startswith("default")]
    titles = [group.title for group in parser._action_groups]
    assert ACCESS not in titles or ACCESS == titles[-1]
    usage = parser.format_usage()
    assert len(usage) <= 90, usage


@pytest.mark.parametrize(
    "line",
    [line.strip() for parser in ALL.values() for line in (parser.epilog or "").removeprefix(EXAMPLES).splitlines()],
)
def test_an_example_can_be_typed(line: str) -> None:
    """What a shell does with the line (variables, files, redirections) is left out."""
    if not line:
        return
    words = shlex.split(line)
    while "=" in words[0].partition("penstock")[0]:
        del words[0]
    if words[0] == "echo":
        words = shlex.split(words[1].removeprefix('eval "$(').removesuffix(')"'))
    end = next((at for at, word in enumerate(words) if word in ("<", ">", ">>")), len(words))
    assert "penstock" == words[0]
    build_parser(whole=True).parse_args(words[1:end])


def test_every_command_but_the_simplest_has_examples() -> None:
    without = {name for name, parser in ALL.items() if not parser.epilog and len(name.split()) == 2}
    assert {"penstock demo", "penstock down"} >= without


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("plan --rate 1 --model lama-3.1-8b --no-store", "llama-3.1-8b"),
        ("plan --rate 1 --model llama-3.1-8b --gpu h101", "h100"),
        ("plan --rate 1 --model llama-3.1-8b --price h20O=1", "h20"),
        ("plan --rate 1 --model llama-3.1-8b --precision bf61", "bf16"),
        ("loadtest --scenario chatt", "chat"),
        ("loadtest --arrivals poison", "poisson"),
        ("loadtest --assert tftt_p99<1s", "ttft_p99"),
        ("profile --pool dmeo", "demo"),
        ("logs route-0 --state-dir {state}", "router-0"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_one(
    line: str, near: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "router-0.log").touch()
    assert 2 == main(line.format(state=tmp_path).split())
    assert capsys.readouterr().err.endswith(f"; did you mean {near}?\n")
