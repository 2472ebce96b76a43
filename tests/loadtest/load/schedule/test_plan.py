"""Scenarios and the requests they make."""

from __future__ import annotations

import argparse
import itertools
import math
import os
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest

from cluster.errors import SettingsError, TraceError
from loadtest.load.driver.target import Target
from loadtest.load.locust.options import add_load_flags, scenario_of
from loadtest.load.runner import RunOptions, _words
from loadtest.load.schedule.lengths import recorded
from loadtest.load.schedule.plan import plan, plan_of_user, until_last
from loadtest.load.schedule.prompts import Prompts
from loadtest.load.schedule.scenario import SCENARIOS, find_scenario, scenario_fields, scenario_from
from loadtest.traces.sample import SAMPLE
from penstock.models import RequestClass


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_parts_of_all_processes_are_the_whole(name: str) -> None:
    scenario = SCENARIOS[name]
    whole = list(plan(scenario))
    parts = [list(plan(scenario, shard, 3)) for shard in range(3)]
    assert whole == sorted(itertools.chain(*parts), key=lambda each: each.number)
    assert all(each.at_s < scenario.duration_s for each in whole)


def test_a_mix_has_its_weights_and_classes() -> None:
    fields = scenario_fields(SCENARIOS["mixed"]) | {"duration_s": 2000.0}
    planned = list(plan(scenario_from(fields)))
    kinds = Counter(each.kind for each in planned)
    assert {"chat", "rag", "batch", "agent"} == set(kinds)
    assert pytest.approx(6 / 12, abs=0.03) == kinds["chat"] / len(planned)
    assert {int(RequestClass.BATCH)} == {each.request_class for each in planned if each.kind == "batch"}
    agents = {(each.group, each.session) for each in planned if each.kind == "agent"}
    assert all(group == session for group, session in agents)
    assert 20 == len(agents)


def test_prompts_have_their_length_and_share_their_beginnings() -> None:
    planned = [each for each in plan(SCENARIOS["agents"]) if each.shared_tokens > 100]
    prompts = Prompts(vocabulary=4096, context=0, seed=1)
    by_group: dict[str, list[list[int]]] = {}
    for each in planned:
        ids = list(prompts.ids(each, each.prompt_tokens))
        assert each.prompt_tokens == len(ids)
        assert all(0 <= token < 4096 for token in ids)
        by_group.setdefault(each.group, []).append(ids)
    beginnings = {group: {tuple(ids[:100]) for ids in members} for group, members in by_group.items()}
    assert all(len(found) == 1 for found in beginnings.values())
    assert len(beginnings) == len(set.union(*beginnings.values()))
    whole = [tuple(ids) for members in by_group.values() for ids in members]
    assert len(whole) == len(set(whole))


def test_what_the_context_cannot_hold_is_cut() -> None:
    (each,) = plan(scenario_from({"name": "x", "arrivals": "constant", "rate": 1.0, "duration_s": 1.0,
                                  "prompt_tokens": 900, "output_tokens": 400}))  # fmt: skip
    assert (900, 400) == Prompts(100, 2000, 1).lengths(each)
    prompt, output = Prompts(100, 1000, 1).lengths(each)
    assert (750, 250) == (prompt, output)


def test_users_have_streams_of_their_own() -> None:
    first, second = (
        [each.at_s for each in itertools.islice(plan_of_user(SCENARIOS["chat"], "chat", 2.0, user), 400)]
        for user in ("0/0", "0/1")
    )
    assert first != second
    assert pytest.approx(200.0, rel=0.2) == first[-1]


@pytest.mark.parametrize("rate", [-1.0, 0.0, math.nan, math.inf])
def test_users_without_a_rate_send_nothing(rate: float) -> None:
    with pytest.raises(SettingsError, match="user-rate must be a number above 0, got"):
        plan_of_user(SCENARIOS["chat"], "chat", rate, "0/0")


@pytest.mark.parametrize(
    "text", ["num_prefill_tokens,num_decode_tokens\n7,3\n", "arrival_s,prompt_tokens,output_tokens\n0,7,3\n"]
)
def test_lengths_come_from_a_pipe_too(text: str) -> None:
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    recorded.cache_clear()
    assert [(7, 3)] == recorded(Path(f"/dev/fd/{reader}")).pairs
    recorded.cache_clear()
    os.close(reader)


@pytest.mark.parametrize("length", ["1000000001", "9" * 5000])
def test_a_length_that_is_no_requests_is_named(tmp_path: Path, length: str) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(f"num_prefill_tokens,num_decode_tokens\n7,{length}\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r"num_decode_tokens.*must be at most 1000000000, got") as caught:
        recorded(path)
    assert 2 == caught.value.line


def test_a_trace_comes_as_recorded(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    lines = ["arrival_s,prompt_tokens,output_tokens,class", "5,10,3,batch", "6,20,4,interactive", "9,30,5,batch"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    scenario = scenario_from({"name": "x", "trace": str(path), "scale_rate": 2.0, "duration_s": 1.9})
    found = [(each.at_s, each.prompt_tokens, each.output_tokens, each.request_class) for each in plan(scenario)]
    assert [(0.0, 10, 3, 2), (0.5, 20, 4, 0)] == found


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--trace {} --rate 5", "rate: a trace has its own times and lengths, got 5; see scale-rate"),
        ("--trace {} --arrivals constant", "arrivals: a trace has"),
        ("--trace {} --lengths {}", "lengths: a trace has"),
        ("--trace {} --prompt-tokens 5 --output-tokens 5", "prompt-tokens: a trace has"),
        ("--scale-rate 2", "scale-rate is for traces, got 2 without a trace"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(flags: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n5,10,3\n", encoding="utf-8")
    parser = argparse.ArgumentParser()
    add_load_flags(parser, "chat")
    with pytest.raises(SettingsError, match=said):
        scenario_of(parser.parse_args(flags.replace("{}", str(path)).split()))
    kept = scenario_of(parser.parse_args(["--trace", str(path), "--scale-rate", "2", "--arrivals", "trace"]))
    assert (str(path), 2.0) == (kept.trace, kept.scale_rate)


def test_lines_of_a_trace_without_tokens_are_told(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n5,10,3\n6,20,0\n", encoding="utf-8")
    scenario, said = scenario_from({"name": "x", "trace": str(path)}), Mock()
    assert 1 == len(list(plan(scenario, tell=said)))
    said.assert_called_once_with(f"{path}: 1 of 2 lines have no prompt or no output tokens and are left out")


def test_recorded_lengths_are_drawn_in_pairs(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n10,1\n20,2\n30,3\n", encoding="utf-8")
    planned = list(plan(scenario_from({"name": "x", "rate": 5.0, "lengths": str(path)})))
    assert {(10, 1), (20, 2), (30, 3)} == {(each.prompt_tokens, each.output_tokens) for each in planned}


def test_a_file_describes_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'arrivals = "gamma:cv=2"\nrate = 7\nduration_s = 30\n[mix]\nchat = 1\nrag = 0.5\n', encoding="utf-8"
    )
    found = find_scenario(str(path))
    assert ("mine", 7, 30, {"chat": 1, "rag": 0.5}) == (found.name, found.rate, found.duration_s, found.mix)
    assert "gamma:cv=2" == str(found.arrivals)
    assert found == scenario_from(scenario_fields(found))


@pytest.mark.parametrize("name", ["tour 🚀", 'größe "x" \\ \x7f\t'])
def test_locust_gets_a_scenario_as_it_is(name: str, tmp_path: Path) -> None:
    """Whatever its name and its files are called."""
    fields = {"name": name, "text": name, "mix": {"chat": 1.0, "rag": 0.5}, "lengths": str(tmp_path / name)}

    _words(scenario_from(fields), RunOptions(Target(("127.0.0.1:1",))), tmp_path)

    assert scenario_from(fields) == find_scenario(str(tmp_path / "scenario.toml"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rat": 1.0}, "'rat' is unknown"),
        ({"rate": "1"}, "rate must be a number, got '1'"),
        ({"rate": 0}, "rate must be a number above 0, got 0"),
        ({"mix": {"chatter": 1}}, "mix must name some of chat, rag, batch, agent, got chatter"),
        ({"prompt_tokens": 5}, "given together"),
        ({"warmup_s": 60.0}, "warmup_s must be"),
        ({"arrivals": "trace"}, "go together"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        scenario_from({"name": "x", **fields})


def test_an_unknown_scenario_names_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"must be one of smoke, chat.* got 'chart'"):
        find_scenario("chart")


@pytest.mark.parametrize(("scale_rate", "lasts_s"), [(1.0, 5.0), (4.0, 2.0), (0.01, 60.0)])
def test_a_load_ends_with_its_trace(tmp_path: Path, scale_rate: float, lasts_s: float) -> None:
    """Else its rates were over the whole asked time."""
    trace = tmp_path / "short.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n4,1,1\n2,1,1\n", encoding="utf-8")
    scenario = scenario_from({"name": "short", "trace": str(trace), "scale_rate": scale_rate, "duration_s": 60.0})
    ended = until_last(scenario)
    assert lasts_s == ended.duration_s
    assert list(plan(scenario)) == list(plan(ended))
    assert SCENARIOS["chat"] == until_last(SCENARIOS["chat"])


def test_files_of_a_scenario_are_in_its_folder_or_the_sample(tmp_path: Path) -> None:
    beside = tmp_path / "own.csv"
    beside.write_text("arrival_s,prompt_tokens,output_tokens\n0,7,3\n", encoding="utf-8")
    scenario = tmp_path / "load.toml"
    for field in ("trace", "lengths"):
        scenario.write_text(f'{field} = "own.csv"', encoding="utf-8")
        assert str(beside) == getattr(find_scenario(str(scenario)), field)
        scenario.write_text(f'{field} = "sample"', encoding="utf-8")
        assert str(SAMPLE) == getattr(find_scenario(str(scenario)), field)
    assert next(plan(find_scenario(str(scenario)))).prompt_tokens > 1
