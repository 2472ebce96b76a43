"""A flag that changes nothing about the answer is refused, and says so with its value."""

from __future__ import annotations

import argparse

import pytest

from cluster.cli.main import main
from loadtest.plan.flags import add_flags
from loadtest.plan.verbs.effects import USED

PLAN = "--model llama-3.1-8b --rate 5"
TRACE = "--model llama-3.1-8b --trace sample"
BUDGET = "--model llama-3.1-8b --price h100=2 --budget 20"
OFFLINE = "--model llama-3.1-8b --requests 1000 --deadline 1"
ALSO = f"{PLAN} --also qwen3-8b,2,500,200"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{PLAN} --cold-start 60", "cold-start has no effect without a trace"),
        (f"{PLAN} --cold-start 180", "got 180.0"),
        (f"{PLAN} --limit 7", "limit is for traces, got 7 without a trace"),
        (f"{PLAN} --scale-rate 1", "scale-rate is for traces, got 1.0 without a trace"),
        (f"{PLAN} --lengths sample --prompt-tokens 500", "prompt-tokens has no effect with lengths"),
        (f"{PLAN} --lengths sample --spread 0.5", "spread has no effect with lengths"),
        (f"{PLAN} --output-tokens 1 --spread 0 --slo-itl 0.1", "slo-itl has no effect where no output has a second"),
        (f"{BUDGET} --output-tokens 1.4 --spread 0 --slo-tpot 0.1", "slo-tpot has no effect where no output has a"),
        (f"{PLAN} --currency USD", "currency has no effect without a price, got USD"),
        (f"{TRACE} --prompt-tokens 500", "prompt-tokens: a trace has its own, got 500.0"),
        (f"{TRACE} --output-tokens 500", "output-tokens: a trace has its own, got 500.0"),
        (f"{TRACE} --spread 0.2", "spread: a trace has its own, got 0.2"),
        (f"{BUDGET} --draws 3", "draws has no effect with budget, got 3"),
        (f"{BUDGET} --limit 3", "limit has no effect with budget, got 3"),
        (f"{BUDGET} --html x.html", "html has no effect with budget, got x.html"),
        (f"{BUDGET} --cold-start 5", "cold-start has no effect with budget, got 5.0"),
        (f"{OFFLINE} --slo-ttft 3", "slo-ttft has no effect with deadline, got 3.0"),
        (f"{OFFLINE} --attainment 0.9", "attainment has no effect with deadline, got 0.9"),
        (f"{OFFLINE} --simulate 1", "simulate has no effect with deadline, got 1"),
        (f"{OFFLINE} --seed 4", "seed has no effect with deadline, got 4"),
        (f"{ALSO} --simulate 2", "simulate has no effect with also, got 2"),
        ("--profile x.json --rate 1 --gpu l4", "--gpu says what to look for, and --profile is of one engine"),
        ("--profile x.json --rate 1 --tp 2", "--tp says what to look for, and --profile is of one engine"),
        ("--check-points x.csv --tp 2 --tp 4", "tp has no effect with check-points, got 2, 4"),
        ("--review --rate 5", "rate has no effect with review, got 5.0"),
        ("--observe p1 x.json --model llama-3.1-8b", "model has no effect with observe, got llama-3.1-8b"),
    ],
)
def test_a_flag_without_effect_is_refused(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["plan", *line.split()])
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--gpu h100,h100", "gpu: h100 is given 2 times, and can be given once"),
        ("--gpu NVIDIA-L4,l40s,l4", "gpu: l4 is given 2 times, and can be given once"),
        ("--precision fp16,bf16", "precision: bf16 is given 2 times, and can be given once"),
        ("--tp 2 --tp 4 --tp 2", "tp: 2 is given 2 times, and can be given once"),
        ("--tp 1 --pp 2 --pp 2", "pp: 2 is given 2 times, and can be given once"),
        ("--price h100=2 --price H100-SXM=3", "price: h100 has two prices, 2 and 3"),
    ],
)
def test_a_choice_that_is_given_twice_is_refused(flags: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each was simulated and listed twice; of two prices the last one counted."""
    assert 2 == main(["plan", "--model", "llama-3.1-8b", "--rate", "5", "--no-store", *flags.split()])
    assert words in capsys.readouterr().err


def test_every_flag_has_an_effect_somewhere() -> None:
    """A new flag belongs to a question, or it is refused everywhere."""
    parser = argparse.ArgumentParser()
    add_flags(parser)
    flags = {action.dest for action in parser._actions} - {"help"}
    assert flags == set().union(*USED.values())


def test_lengths_of_another_model_are_drawn_beside_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """So their spread counts. The model is unknown, which ends the plan behind the check."""
    line = f"{TRACE} --spread 0.2 --also nobody,2,500,200".split()
    assert 2 == main(["plan", *line])
    assert "'nobody' is no local folder" in capsys.readouterr().err
