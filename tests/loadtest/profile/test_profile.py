"""A profile of an engine whose step times are known."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from cluster.cli.main import main
from cluster.control.step_model import StepModel, StepSample
from cluster.errors import EngineError, SettingsError
from cluster.models import GenerationSpec, ModelInfo, SequenceEnd, Windows
from deployments.engines.base import Engine, EngineIdentity, TokenSink
from loadtest.plan.profiled import engine_of
from loadtest.plan.what_if import measurements
from loadtest.profile.drive import PROMPTS, profile
from loadtest.profile.fit import blocks_of, fit_cells
from loadtest.profile.stored import Profile, read_profile
from penstock.models import Capabilities, FinishReason

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
    model, error = fit_cells([[steps(*cell)] for cell in GRID])
    assert (TRUE.a, TRUE.b, TRUE.g) == (
        pytest.approx(model.a),
        pytest.approx(model.b),
        pytest.approx(model.g, rel=1e-3),
    )
    assert 0.0 == pytest.approx(error, abs=1e-6)


def test_steps_that_something_held_up_count_little() -> None:
    runs = [steps(*cell, noise=0.1) for cell in GRID]
    runs[2][10:14] = [StepSample(1.0, s.tokens, s.kv_tokens, s.sequences) for s in runs[2][10:14]]
    model, _ = fit_cells([run] for run in runs)
    assert TRUE.predict(16, 3000) == pytest.approx(model.predict(16, 3000), rel=0.05)


def test_prompts_and_decodes_are_averaged_apart() -> None:
    blocks = blocks_of(steps(4, 100))
    assert [400] == [block.tokens for block in blocks if block.tokens != 4]
    assert 49 == sum(block.steps for block in blocks)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(EngineError, match="needs at least 96 steps"):
        fit_cells([[steps(1, 16)[:20]]])


class KnownEngine:
    """An engine without a clock: what was submitted together runs in lockstep, and its steps take what TRUE says."""

    def __init__(self, slower: float = 1.0) -> None:
        self._slower = slower
        self._waiting: list[tuple[GenerationSpec, TokenSink]] = []
        self._steps: list[StepSample] = []

    async def set_batch_limits(self, sequences: int | None, tokens: int | None) -> tuple[int, int]:
        return 16, 2048

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._run)
        self._waiting.append((spec, sink))

    def take_steps(self) -> list[StepSample]:
        taken, self._steps = self._steps, []
        return taken

    def _run(self) -> None:
        batch, self._waiting = self._waiting, []
        prompt, output = len(batch[0][0].prompt_token_ids), batch[0][0].sampling.max_tokens
        made = steps(len(batch), prompt)[: output + 1]
        # Cells that no fit has seen may be slower.
        factor = self._slower if prompt not in PROMPTS else 1.0
        self._steps += [StepSample(factor * s.seconds, s.tokens, s.kv_tokens, s.sequences) for s in made]
        for _, sink in batch:
            sink.on_tokens([7], "", None)
            sink.on_end(SequenceEnd(FinishReason.LENGTH, output_tokens=output))


async def profiled(engine: KnownEngine) -> Profile:
    model = ModelInfo("digest", "digest", 4096, 256, Capabilities())
    windows = Windows(sequences=16, kv_tokens=200_000, prefill_tokens=8192)
    identity = EngineIdentity(model, "digest-toy-tp1-float32", 1, "toy", {}, windows)
    return await profile(cast(Engine, engine), identity, name="demo", rounds=1)


@pytest.fixture(scope="module")
def found() -> Profile:
    return asyncio.run(profiled(KnownEngine()))


def test_an_engine_is_profiled_and_checked_on_points_it_was_not_fitted_to(found: Profile) -> None:
    assert (TRUE.a, TRUE.b) == (pytest.approx(found.a, rel=0.01), pytest.approx(found.b, rel=0.01))
    assert (1, 16) == found.batches
    assert {2, 8} == {each.batch for each in found.checks}
    assert found.error < 0.01
    assert "float32" == found.precision


async def test_an_error_on_held_out_points_is_told() -> None:
    slower = await profiled(KnownEngine(slower=1.25))
    assert 0.2 == pytest.approx(slower.error, rel=0.05)
    assert slower.fit_error < 0.01


def test_a_profile_that_misses_its_own_points_is_no_basis(found: Profile) -> None:
    with pytest.raises(SettingsError, match="held-out error of 150% is more than 100%"):
        engine_of(replace(found, error=1.5), {})


def test_a_profile_is_kept_and_read(found: Profile, tmp_path: Path) -> None:
    file = found.save(tmp_path)
    assert tmp_path / "profiles" == file.parent
    assert found == read_profile(file)
    # As editors of other systems keep it.
    file.write_text(file.read_text(encoding="utf-8"), encoding="utf-8-sig")
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


@pytest.mark.parametrize(
    ("text", "problem"),
    [('{"checks": []}', "is no profile: batches is missing"), ("[]", "must hold one JSON object")],
)
def test_what_is_no_profile_at_all_is_said_in_words(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "profile.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match=problem):
        read_profile(file)


def test_a_missing_folder_is_named_before_an_engine_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(_pool: object) -> Engine:
        raise EngineError("started")

    monkeypatch.setattr("loadtest.profile.command.build_engine", started)
    folder = tmp_path / "model"
    assert 2 == main(["profile", "--model", str(folder)])
    assert capsys.readouterr().err.endswith(f"there is no folder {folder}\n")


def test_a_folder_that_cannot_hold_the_profile_is_named_before_an_engine_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(_pool: object) -> Engine:
        raise EngineError("started")

    monkeypatch.setattr("loadtest.profile.command.build_engine", started)
    (tmp_path / "file").touch()
    assert 2 == main(["profile", "--engine", "sim", "--model", "m", "--out", str(tmp_path / "file")])
    assert f"profile: {tmp_path}/file/profiles cannot be written: Not a directory\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[pools.a]\nmodel = "/no/such"\n', "pools.a.model: there is no folder /no/such"),
        ("[pools.a]\n[pools.b]\n", "--pool must say which pool is measured: a, b"),
    ],
)
def test_the_pool_of_the_settings_is_profiled_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    def started(_pool: object) -> Engine:
        raise EngineError("started")

    monkeypatch.setattr("loadtest.profile.command.build_engine", started)
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    assert 2 == main(["profile", "--settings", str(file)])
    assert f"penstock: {problem}\n" == capsys.readouterr().err


@pytest.mark.parametrize(("text", "known"), [("[pools.a]\n[pools.b]\n", "a, b"), ("", "demo")])
def test_a_pool_that_is_not_there_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, known: str
) -> None:
    def started(_pool: object) -> Engine:
        raise EngineError("started")

    monkeypatch.setattr("loadtest.profile.command.build_engine", started)
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    assert 2 == main(["profile", "--settings", str(file), "--pool", "typo", "--engine", "sim"])
    assert f"penstock: --pool must be one of {known}, got 'typo'\n" == capsys.readouterr().err


@pytest.mark.slow
def test_a_load_is_planned_from_a_profile(found: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = found.save(tmp_path)
    flags = ["--rate", "2", "--prompt-tokens", "64", "--output-tokens", "32", "--draws", "2", "--json"]
    assert 0 == main(["plan", "--profile", str(file), "--state-dir", str(tmp_path), *flags])
    (best,) = json.loads(capsys.readouterr().out)["candidates"]
    assert "profile" == best["source"]
    assert 2 == main(["plan", "--profile", str(file), "--state-dir", str(tmp_path), *flags, "--price", "h200=3"])
    assert f"price: h200 is not looked at, only {found.hardware}" in capsys.readouterr().err
    assert "p1" == json.loads((tmp_path / "plans.jsonl").read_text())["id"]


def test_a_plan_without_lengths_fits_the_profiles_context(
    found: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = replace(found, context=2048, kv_tokens=max(found.kv_tokens, 4096)).save(tmp_path)
    words = ["plan", "--profile", str(file), "--state-dir", str(tmp_path), "--rate", "1", "--draws", "1", "--json"]
    assert main(words) in (0, 3)
    plan = json.loads(capsys.readouterr().out)
    assert [] == plan["rejected"]
    prompt, output = plan["load"]["prompt_tokens"], plan["load"]["output_tokens"]
    assert 400 < prompt < 1000
    assert prompt / output == pytest.approx(4, rel=0.02)


def test_own_lengths_spread_as_a_profiles_context_allows(
    found: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As those of a model do. One request in a hundred was longer, and so the plan was impossible."""
    file = replace(found, context=4096, kv_tokens=max(found.kv_tokens, 8192)).save(tmp_path)
    words = ["plan", "--profile", str(file), "--state-dir", str(tmp_path), "--rate", "1", "--prompt-tokens", "2000"]
    assert main([*words, "--draws", "1", "--json"]) in (0, 3)
    plan = json.loads(capsys.readouterr().out)
    assert [] == [each["why"] for each in plan["rejected"] if "context" in each["why"]]
    assert "as the context of 4,096 allows" in plan["load"]["name"]
    assert 2000 == plan["load"]["prompt_tokens"]


def test_a_plan_from_a_profile_asks_for_load_tests(found: Profile) -> None:
    """Points do not go together with a profile."""
    assert "load tests (--observe)" == measurements(engine_of(found, {}))


def test_an_own_length_is_not_made_to_fit(found: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = replace(found, context=2048).save(tmp_path)
    words = ["plan", "--profile", str(file), "--state-dir", str(tmp_path), "--rate", "1", "--prompt-tokens", "3000"]
    assert 3 == main([*words, "--json"])
    assert "and the context is 2,048" in json.loads(capsys.readouterr().out)["rejected"][0]["why"]
