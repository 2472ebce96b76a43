"""A replica profiled through its router, and the way from there to a reviewed plan."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.main import main
from cluster.control.step_model import StepModel
from cluster.errors import SettingsError
from loadtest.profile.cluster import facts_of
from loadtest.profile.command import served
from loadtest.profile.drive import CellMeasurement, GridCell, Late, _beside, _fit
from loadtest.profile.source import Told, steps_seen
from loadtest.profile.stored import read_profile
from penstock.client import ClusterStatus, ModelDescription
from penstock.models import Capabilities, ReplicaState
from penstock.values.status.pool import PoolStatus
from penstock.values.status.replica import ReplicaStatus
from tests.support.stack import Stack, running_stack

TRUE = StepModel(0.01, 1e-4, 1e-6)


def told(batch: int, prompt: int, output: int, overhead_s: float = 0.005, merged: int = 1) -> list[Told]:
    """What clients see of sequences that run together, each message with so many tokens."""
    at = overhead_s + TRUE.predict(batch * prompt, 0)
    times = [at]
    for number in range(1, output):
        at += TRUE.predict(batch, batch * (prompt + number))
        times.append(at)
    for first in range(1, output, merged):
        times[first : first + merged] = [times[min(first + merged, output) - 1]] * len(times[first : first + merged])
    return [Told(0.0, list(times)) for _ in range(batch)]


@pytest.mark.parametrize("merged", [1, 2, 4])
def test_clients_see_how_long_steps_take(merged: int) -> None:
    steps = steps_seen(told(4, 100, 49, merged=merged), 100)
    assert 40 <= len(steps) <= 49
    assert {(4, 4)} == {(each.tokens, each.sequences) for each in steps}
    assert TRUE.predict(4, steps[0].kv_tokens) == pytest.approx(steps[0].seconds, rel=0.01)


def test_bursts_do_not_make_steps_shorter() -> None:
    """Half of the tokens come late, in a heap."""
    seen = told(4, 100, 49)
    for each in seen:
        each.times[10:20] = [each.times[19]] * 10
        each.times[30:35] = [each.times[34]] * 5
    (step, *_) = steps_seen(seen, 100)
    assert TRUE.predict(4, step.kv_tokens) == pytest.approx(step.seconds, rel=0.05)


def test_steps_count_only_while_all_decode() -> None:
    short, long = told(2, 10, 20)
    long.times += [long.times[-1] + 0.5 * n for n in range(1, 30)]
    assert TRUE.predict(2, 40) == pytest.approx(steps_seen([short, long], 10)[0].seconds, rel=0.01)
    assert max(each.seconds for each in steps_seen([short, long], 10)) < 0.02


def test_sequences_that_never_ran_together_show_no_steps() -> None:
    early, late = told(2, 10, 20)
    late.times = [each + 100.0 for each in late.times]
    assert [] == steps_seen([early, late], 10)


def test_the_way_to_the_engine_is_told_apart_from_its_steps() -> None:
    cells = []
    for batch in (1, 4, 16):
        for prompt in (16, 256):
            seen = told(batch, prompt, 48, overhead_s=0.03)
            cells.append(
                [CellMeasurement(GridCell(batch, prompt, 48), steps_seen(seen, prompt), [t.ttft_s for t in seen])] * 2
            )
    model, error, overhead_s = _fit(cells)
    assert (TRUE.a, TRUE.b) == (pytest.approx(model.a, rel=0.02), pytest.approx(model.b, rel=0.05))
    assert 0.03 == pytest.approx(overhead_s, rel=0.02)
    assert error < 0.01


def test_late_prompts_wait_for_steps_prepared_in_advance() -> None:
    step = TRUE.predict(4, 400)
    late = [Late(32, 4, 100.0, 0.03 + (1.5 + shift) * step + TRUE.predict(36, 400)) for shift in (-0.4, 0.0, 0.4)]
    assert (0.03, pytest.approx(1.0)) == _beside(TRUE, 0.03, late)
    assert (0.03, 0.0) == _beside(TRUE, 0.03, [])


def test_a_machine_that_had_to_wake_up_does_not_count_as_the_way() -> None:
    late = [Late(32, 4, 100.0, 0.01 + 0.5 * TRUE.predict(4, 400) + TRUE.predict(36, 400))] * 3
    assert (pytest.approx(0.01), 0.0) == _beside(TRUE, 0.03, late)


def status(**changed: Any) -> ClusterStatus:
    values: dict[str, Any] = {
        "replica_id": "r",
        "group_id": "0123456789ab-nvidia-h100-80gb-tp2-bfloat16",
        "state": ReplicaState.READY,
        "address": "x:1",
        "running": 0,
        "batch_limit": 64,
        "kv_usage": 0.0,
        "heartbeat_age": 0.1,
        "linked": True,
        "metrics_port": 0,
        "output_tokens": 0,
        "accepted_draft_tokens": 0,
        "kv_tokens": 5000,
        "prefill_window_tokens": 8192,
    }
    replicas = int(changed.pop("replicas", 1))
    running = int(changed.pop("running_requests", 0))
    each = ReplicaStatus(**{**values, **changed})
    return ClusterStatus((PoolStatus("demo", 0, running, (each,) * replicas, (), reachable=True),), "1", "router")


MODEL = ModelDescription("demo", 4096, 256, (), Capabilities(), chat=False, ready_replicas=1, digest="d")


def test_a_replica_says_what_it_is() -> None:
    facts = facts_of(MODEL, status())
    assert ("nvidia-h100-80gb", 2, "bfloat16") == (facts.hardware, facts.tensor_parallel, facts.precision)
    assert (5000, 64, 2048, 4096) == (facts.kv_tokens, facts.max_sequences, facts.step_tokens, facts.context)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"replicas": 2}, "must have one replica, or sequences would be spread; it has 2"),
        ({"running_requests": 3}, "must be idle; 3 requests run"),
        ({"kv_tokens": 0}, "does not say enough of replica r"),
    ],
)
def test_a_cluster_that_cannot_be_profiled_says_why(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        facts_of(MODEL, status(**changed))


def test_a_pool_of_a_cluster_is_named_once() -> None:
    def named(pool: str | None, model: str | None) -> str:
        return served(argparse.Namespace(pool=pool, model=model))

    assert ("toy", "toy", "toy", "") == (named("toy", None), named(None, "toy"), named("toy", "toy"), named(None, None))
    with pytest.raises(SettingsError, match="must be the same, got 'toy' and 'demo'"):
        named("toy", "demo")


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    sim = {"base_ms": 8.0, "per_token_us": 50.0, "max_num_seqs": 8}
    async with running_stack(tmp_path / "state", sim=sim) as running:
        yield running


@pytest.mark.alone
@pytest.mark.skipif(importlib.util.find_spec("locust") is None, reason="Locust is not installed")
async def test_from_a_profile_to_a_reviewed_plan(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Profile a replica that serves, plan for a load, send it, note what it showed, and see how good the plan was."""
    target, state = f"127.0.0.1:{stack.routers[0].port}", ("--state-dir", str(tmp_path))

    async def penstock(*words: str) -> Any:
        capsys.readouterr()
        assert 0 == await asyncio.to_thread(main, list(words))
        return json.loads(capsys.readouterr().out)

    profiled = await penstock("profile", "--target", target, *state, "--rounds", "1", "--json")
    found = read_profile(Path(profiled["file"]))
    assert ("demo", "sim", 1) == (found.model, found.hardware, found.tensor_parallel)
    assert 0.006 < found.a < 0.08
    assert {(2, 64), (8, 128)} == {(each.batch, each.prompt_tokens) for each in found.checks}
    assert stack.engines[0].take_steps() == [] or found.samples > 0

    load = ("--prompt-tokens", "32", "--output-tokens", "24", "--rate", "6")
    planned = await penstock("plan", "--profile", profiled["file"], *load, "--spread", "0", *state, "--json")
    (plan_id,) = planned["prediction_ids"]
    report = str(tmp_path / "report")
    sent = ("--scenario", "chat", *load, "--duration", "4", "--warmup", "1", "--target", target)
    await penstock("loadtest", *sent, "--report", report, "--json")

    seen = (await penstock("plan", "--observe", plan_id, f"{report}.json", *state, "--json"))["seen"]
    assert {"ttft_mean_s", "ttft_p99_s", "itl_mean_s", "itl_p95_s", "tokens_per_s"} == seen.keys()
    (kind,) = await penstock("plan", "--review", *state, "--json")
    assert ("demo", "sim", 1) == (kind["model"], kind["gpu"], kind["tensor_parallel"])
    predicted = planned["candidates"][0]["predicted"]
    for name, value in seen.items():
        figure, made = kind["figures"][name], predicted[name]
        assert 1 == figure["count"]
        assert float(made["low"] <= value <= made["high"]) == figure["coverage"]
        assert made["middle"] / value - 1 == pytest.approx(figure["bias"])
