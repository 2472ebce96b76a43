"""A profile of an engine whose step times are known."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from cluster.cli.main import main
from cluster.control.step_model import StepModel, StepSample
from cluster.errors import EngineError, SettingsError
from cluster.settings import EngineKind, PoolSettings, SimSettings
from deployments.engines.factory import build_engine
from loadtest.plan.command import engine_of
from loadtest.profile.drive import profile
from loadtest.profile.fit import blocks_of, fit_blocks
from loadtest.profile.stored import Profile, read_profile

TRUE = StepModel(0.005, 2e-5, 2e-8)


def steps(batch: int, prompt: int, noise: float = 0.0, seed: int = 1) -> list[StepSample]:
    rnd = random.Random(seed)
    made = [StepSample(TRUE.predict(batch * prompt, 0), batch * prompt, 0, batch)]
    for number in range(48):
        kv_tokens = batch * (prompt + number)
        made.append(
            StepSample(TRUE.predict(batch, kv_tokens) * (1 + rnd.uniform(-noise, noise)), batch, kv_tokens, batch)
        )
    return made


GRID = [(batch, prompt) for batch in (1, 4, 16, 64) for prompt in (16, 256)]


def test_the_fit_finds_the_step_times() -> None:
    model, error = fit_blocks([steps(*cell) for cell in GRID])
    assert (TRUE.a, TRUE.b, TRUE.g) == (
        pytest.approx(model.a),
        pytest.approx(model.b),
        pytest.approx(model.g, rel=1e-3),
    )
    assert 0.0 == pytest.approx(error, abs=1e-6)


def test_steps_that_something_held_up_count_little() -> None:
    runs = [steps(*cell, noise=0.1) for cell in GRID]
    runs[2][10:14] = [StepSample(1.0, s.tokens, s.kv_tokens, s.sequences) for s in runs[2][10:14]]
    model, _ = fit_blocks(runs)
    assert TRUE.predict(16, 3000) == pytest.approx(model.predict(16, 3000), rel=0.05)


def test_prompts_and_decodes_are_averaged_apart() -> None:
    blocks = blocks_of(steps(4, 100))
    assert [400] == [block.tokens for block in blocks if block.tokens != 4]
    assert 49 == sum(block.steps for block in blocks)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(EngineError, match="needs at least 96 steps"):
        fit_blocks([steps(1, 16)[:20]])


async def profiled() -> Profile:
    pool = PoolSettings(
        engine=EngineKind.SIM, sim=SimSettings(base_ms=4.0, per_token_us=20.0, time_scale=0.5, max_num_seqs=16)
    )
    engine = build_engine(pool)
    try:
        return await profile(engine, await engine.start(), name="demo", rounds=1)
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def found() -> Profile:
    return asyncio.run(profiled())


def test_an_engine_is_profiled_and_checked_on_points_it_was_not_fitted_to(found: Profile) -> None:
    """Timers only wake late, so a loaded machine shows steps as longer than they were meant."""
    assert 0.002 <= found.a * 1.05
    assert (1, 16) == found.batches
    assert {2, 8} == {each.batch for each in found.checks}
    assert found.error < 0.5
    assert 200_000 == found.kv_tokens


def test_a_profile_is_kept_and_read(found: Profile, tmp_path: Path) -> None:
    file = found.save(tmp_path)
    assert tmp_path / "profiles" == file.parent
    assert found == read_profile(file)


def test_the_planner_claims_no_more_than_was_measured(found: Profile) -> None:
    engine = engine_of(found, {found.hardware: 3.0})
    assert (16, 3.0, "profile") == (engine.step_limits[1], engine.price, engine.source)
    assert engine.error >= max(0.05, found.error)


@pytest.mark.parametrize(("field", "value"), [("a", -1.0), ("kv_tokens", 0), ("checks", None), ("batches", [1])])
def test_a_wrong_profile_is_refused(found: Profile, tmp_path: Path, field: str, value: object) -> None:
    file = found.save(tmp_path)
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(SettingsError, match="is no profile"):
        read_profile(file)


def test_a_load_is_planned_from_a_profile(found: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = found.save(tmp_path)
    flags = ["--rate", "2", "--prompt-tokens", "64", "--output-tokens", "32", "--draws", "2", "--json"]
    assert 0 == main(["plan", "--profile", str(file), "--state-dir", str(tmp_path), *flags])
    (best,) = json.loads(capsys.readouterr().out)["candidates"]
    assert "profile" == best["source"]
    assert "p1" == json.loads((tmp_path / "plans.jsonl").read_text())["id"]
