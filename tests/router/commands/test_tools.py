"""Tools and reasoning on the command line, with an engine that answers with both."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cluster.cli.main import main
from cluster.errors import SettingsError
from router.commands.generate import SAMPLING_FLAGS, add_flags
from router.commands.tools import choice_from, flag_of, read_tool_files
from tests.support.stack import Stack, running_stack, sim_pool
from tests.support.terminal import PENSTOCK, Terminal

on_stack = pytest.mark.asyncio(loop_scope="module")
Captured = pytest.CaptureFixture[str]

PARIS, OSLO = 'weather({"city": "Paris"})', 'weather({"city":"Oslo"})'
CALLS = (
    "<think>They ask about [rain].</think>One moment."
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    '<tool_call>\n{"name": "weather", "arguments": {"city":"Oslo"}}\n</tool_call>'
)
FUNCTION: dict[str, Any] = {
    "name": "weather",
    "description": "Tell the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    wrong = 'One moment.<tool_call>\n{"name": "weather", "arguments": ["Paris"]}\n</tool_call>'
    answers = {"calls": CALLS, "text": "<think>Short.</think>It rains.", "wrong": wrong}
    pools = {pool: sim_pool(answer=answer) for pool, answer in answers.items()}
    async with running_stack(tmp_path_factory.mktemp("state"), pools=pools) as running:
        yield running


@pytest.fixture
def weather(tmp_path: Path) -> str:
    return written(tmp_path / "weather.json", FUNCTION)


def written(path: Path, value: object) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def target(stack: Stack) -> tuple[str, str]:
    return "--target", f"127.0.0.1:{stack.routers[0].port}"


async def generate(stack: Stack, *words: str, model: str = "calls") -> int:
    return await asyncio.to_thread(main, ["generate", "Rain?", "--model", model, *target(stack), *words])


@on_stack
async def test_calls_are_lines_after_the_text_and_reasoning_is_beside_the_answer(
    stack: Stack, weather: str, capsys: Captured
) -> None:
    assert 0 == await generate(stack, "--tool", weather)
    said = capsys.readouterr()
    assert f"One moment.\n{PARIS}\n{OSLO}\n" == said.out
    assert "They ask about [rain].\n" in said.err


@on_stack
async def test_each_answer_has_its_own_calls(stack: Stack, weather: str, capsys: Captured) -> None:
    assert 0 == await generate(stack, "--tool", weather, "--n", "2")
    said = capsys.readouterr()
    assert f"[0] One moment.\n{PARIS}\n{OSLO}\n[1] One moment.\n{PARIS}\n{OSLO}\n" == said.out
    assert "[0] They ask about [rain].\n" in said.err
    assert "[1] They ask about [rain].\n" in said.err


@on_stack
async def test_reasoning_is_left_out_when_asked(stack: Stack, weather: str, capsys: Captured) -> None:
    assert 0 == await generate(stack, "--tool", weather, "--no-reasoning")
    said = capsys.readouterr()
    assert said.out.startswith("One moment.\n")
    assert "They ask" not in said.err
    # A plain text has no options of a conversation.
    assert 0 == await generate(stack, "--no-reasoning", model="text")


@on_stack
async def test_events_in_json_have_calls_and_reasoning(stack: Stack, weather: str, capsys: Captured) -> None:
    assert 0 == await generate(stack, "--tool", weather, "--json")
    deltas = [event for event in map(json.loads, capsys.readouterr().out.splitlines()) if event["event"] == "delta"]
    assert "They ask about [rain]." == "".join(each["reasoning"] for each in deltas)
    pieces = [call for each in deltas for call in each["tool_calls"]]
    assert ["weather", "weather"] == [each["name"] for each in pieces if each["id"]]
    arguments = "".join(each["arguments"] for each in pieces if each["index"] == 1)
    assert {"city": "Oslo"} == json.loads(arguments)


@on_stack
async def test_reasoning_is_dim_and_before_the_answer_on_a_terminal(stack: Stack, weather: str) -> None:
    words = ("generate", "Rain?", "--model", "calls", "--tool", weather, *target(stack))
    with Terminal(*PENSTOCK, *words) as terminal:
        assert 0 == await asyncio.to_thread(terminal.ended), terminal.said
        # It comes in pieces of any length, each of them dim.
        assert "\x1b[2mT" in terminal.said, repr(terminal.said)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.said)
        assert f"They ask about [rain].\r\nOne moment.\r\n{PARIS}\r\n" in plain, repr(terminal.said)


def test_files_have_a_tool_or_a_list_in_either_form(tmp_path: Path) -> None:
    other = {"type": "function", "function": {"name": "time", "strict": True}}
    one, two = written(tmp_path / "1", FUNCTION), written(tmp_path / "2", [other, {"name": "day"}])
    tools = read_tool_files([one, two])
    assert ("weather", "time", "day") == tools.names
    assert [False, True, False] == [each.strict for each in tools.tools]
    assert FUNCTION["parameters"] == json.loads(tools.tools[0].parameters)
    assert f"--tool: {two}: [1].name" == tools.placed("prompt.chat.tools[2].name")
    assert "--max-tokens" == tools.placed("sampling.max_tokens")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", "FILE is not JSON: Expecting property name"),
        ([], "FILE: must have at least one tool, got []"),
        (3, "FILE: must be an object, got 3"),
        ({"name": 3}, "FILE: name: must be text, got 3"),
        ({"name": "a", "parameters": []}, "FILE: parameters: must be a JSON Schema, got []"),
        ({"name": "a", "input_schema": {}}, "FILE: input_schema: is not supported"),
        ([FUNCTION, {"type": "web_search"}], 'FILE: [1].type: must be "function", got "web_search"'),
        ([FUNCTION, {"function": {}}], "FILE: [1].function.name: is required"),
        ([FUNCTION, FUNCTION], 'FILE: [1].name: must be unique, got "weather", which FILE: [0] has too'),
        ("[" * 100_000, "FILE: is nested too deeply"),
    ],
)
def test_a_wrong_file_is_named_with_the_place_and_value(tmp_path: Path, value: object, said: str) -> None:
    name = written(tmp_path / "tools.json", value)
    with pytest.raises(SettingsError) as caught:
        read_tool_files([name])
    assert str(caught.value).replace(name, "FILE").startswith(f"--tool: {said}")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^--tool: none\.json cannot be read: No such file"):
        read_tool_files(["none.json"])


@on_stack
async def test_what_the_router_refuses_of_a_tool_is_said_with_its_file(
    stack: Stack, tmp_path: Path, weather: str, capsys: Captured
) -> None:
    wrong = written(tmp_path / "wrong.json", {"name": "x" * 200})
    assert 2 == await generate(stack, "--tool", weather, "--tool", wrong)
    assert capsys.readouterr().err.startswith(f"penstock: --tool: {wrong}: name: ")


def test_a_choice_is_a_word_or_the_name_of_a_tool(weather: str) -> None:
    tools = read_tool_files([weather])
    for word, expected in (
        ("none", ("none", ())),
        ("required", ("required", ())),
        ("weather", ("required", tools.names)),
    ):
        choice = choice_from(word, tools)
        assert choice is not None
        assert expected == (choice.mode, choice.names)
    with pytest.raises(
        SettingsError, match=r"one of auto, none, required, weather, got 'wether'; did you mean weather"
    ):
        choice_from("wether", tools)
    with pytest.raises(SettingsError, match="--tool-choice auto needs --tool"):
        choice_from("auto", read_tool_files([]))


@on_stack
async def test_a_choice_reaches_the_router(stack: Stack, weather: str, capsys: Captured) -> None:
    assert 0 == await generate(stack, "--tool", weather, "--tool-choice", "none")
    assert PARIS not in capsys.readouterr().out.splitlines()


def chat(stack: Stack, model: str, *words: str) -> list[str]:
    return [*PENSTOCK, "chat", "--model", model, *target(stack), *words]


async def talk(stack: Stack, model: str, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    def run() -> subprocess.CompletedProcess[str]:
        words_ = chat(stack, model, "--receipt", *words)
        return subprocess.run(words_, input=text, capture_output=True, text=True, check=False)

    return await asyncio.to_thread(run)


def prompts(said: str) -> list[int]:
    """Return the lengths of the prompts that were sent, from the receipts."""
    return [int(each) for each in re.findall(r"tokens in (\d+)", said)]


@pytest.mark.slow
@on_stack
async def test_lines_after_calls_are_their_results(stack: Stack, weather: str) -> None:
    # An empty result counts, and so does one with a slash.
    done = await talk(stack, "calls", "Rain?\nrain\n/dev/null\n\nrain\n/tools\n/quit\n", "--tool", weather)
    assert 0 == done.returncode, done.stderr
    first, second, third = prompts(done.stderr)
    assert first < second < third
    assert 3 == done.stdout.count(f"One moment.\n{PARIS}\n{OSLO}\n")
    assert "weather  Tell the weather.\n" in done.stderr


@pytest.mark.slow
@on_stack
async def test_a_reset_forgets_calls_that_wait(stack: Stack, weather: str) -> None:
    done = await talk(stack, "calls", "Rain?\n/reset\nRain?\n/quit\n", "--tool", weather)
    assert 0 == done.returncode, done.stderr
    first, second = prompts(done.stderr)
    assert first == second


@pytest.mark.slow
@on_stack
async def test_an_input_that_ends_before_a_result_fails_the_chat(stack: Stack, weather: str) -> None:
    done = await talk(stack, "calls", "Rain?\nrain\n", "--tool", weather)
    assert 1 == done.returncode
    assert f"the input ended before the result of {OSLO}" in done.stderr


@pytest.mark.slow
@on_stack
async def test_calls_that_were_cut_are_not_kept(stack: Stack, weather: str) -> None:
    done = await talk(stack, "calls", "Rain?\nSun?\n", "--tool", weather, "--max-tokens", "50")
    assert done.stdout.startswith("One moment.\nweather("), done.stdout
    assert 2 == done.stderr.count("the calls are not kept: the answer reached the largest number of tokens")
    assert 1 == done.returncode
    # The second message is sent, so nothing waits for a result.
    assert 2 == len(prompts(done.stderr))


@pytest.mark.slow
@on_stack
async def test_calls_with_wrong_arguments_are_not_kept(stack: Stack, weather: str) -> None:
    done = await talk(stack, "wrong", "Rain?\nSun?\n", "--tool", weather)
    assert 'the calls are not kept: the arguments of weather(["Paris"]) are no JSON object' in done.stderr, done.stdout
    first, second = prompts(done.stderr)
    # The text is kept.
    assert second > first
    assert 1 == done.returncode


@pytest.mark.slow
@on_stack
async def test_reasoning_is_shown_in_a_chat_unless_it_is_left_out(stack: Stack) -> None:
    assert "Short.\n" in (await talk(stack, "text", "Rain?\n")).stderr
    done = await talk(stack, "text", "Rain?\n/tools\n", "--no-reasoning")
    assert "It rains.\n" == done.stdout
    assert "Short." not in done.stderr
    assert "there are no tools; start with --tool FILE" in done.stderr


@pytest.mark.slow
@on_stack
async def test_a_person_is_asked_for_each_result(stack: Stack, weather: str) -> None:
    with Terminal(*chat(stack, "calls", "--tool", weather)) as terminal:
        at = await asyncio.to_thread(terminal.until, "> ")
        terminal.type("Rain?\n")
        for result in ("rain\n", "sun\n"):
            at = await asyncio.to_thread(terminal.until, "result of weather> ", after=at)
            terminal.type(result)
        at = await asyncio.to_thread(terminal.until, "One moment.", after=at)
        await asyncio.to_thread(terminal.until, "result of weather> ", after=at)
        terminal.type("\x04")
        assert 0 == await asyncio.to_thread(terminal.ended), terminal.said


@pytest.mark.parametrize(
    ("field", "flag"),
    [
        ("sampling.temperature", "--temperature"),
        ("sampling.stop[3]", "--stop"),
        ("sampling.structured_output.json_schema", "--json-schema, --regex or --choice"),
        ("request_class", "--class"),
        ("lora_adapter", "--lora-adapter"),
        ("tool_choice.names[0]", "--tool-choice"),
        ("prompt", "PROMPT"),
        # No flag has it.
        ("prompt.chat.messages[0].content", "prompt.chat.messages[0].content"),
        ("session_id", "session_id"),
    ],
)
def test_a_field_is_named_by_its_flag(field: str, flag: str) -> None:
    assert flag == flag_of(field)


def test_the_flags_are_those_of_the_command() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    flags = {each for action in parser._actions for each in action.option_strings}
    names = [flag.replace("-", "_") for flag, *_ in SAMPLING_FLAGS]
    assert {flag_of(f"sampling.{name}") for name in (*names, "n", "stop[0]", "logprobs", "ignore_eos")} <= flags
    assert {flag_of(field) for field in ("model", "lora_adapter", "request_class", "tool_choice")} <= flags
