"""What only a real vLLM engine can show."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.errors import EngineDeadError, EngineRequestError
from cluster.models import GenerationSpec, ResumeRecord
from deployments.engines.vllm.startup.early_core import EarlyCore
from deployments.engines.vllm.startup.processes import tree_of
from penstock.models import ConstraintKind, FinishReason, SamplingParams, StructuredOutput
from tests.deployments.engines.conftest import Started
from tests.deployments.engines.recorder import Recorder, begin, generate, greedy

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
]

real_engine = pytest.mark.parametrize("started", ["vllm"], indirect=True)

PROMPT = tuple(range(600, 640))
REPEATING_PROMPTS = [tuple(range(start, start + 30)) for start in range(400, 800, 50)]
PATTERN = r"[a-f]{3}-[0-9]{12}-[x-z]{6}"
CONSTRAINTS = {
    "choice": StructuredOutput(ConstraintKind.CHOICE, choices=("scale up", "scale down")),
    "regex": StructuredOutput(ConstraintKind.REGEX, PATTERN),
    "json": StructuredOutput(ConstraintKind.JSON_SCHEMA, json.dumps({"enum": ["queued", "started", "finished"]})),
    "grammar": StructuredOutput(ConstraintKind.GRAMMAR, 'root ::= "yes, " ("now" | "later")'),
}
VALID = {
    "choice": r"scale (up|down)",
    "regex": PATTERN,
    "json": r'"(queued|started|finished)"',
    "grammar": r"yes, (now|later)",
}


def constrained(constraint: StructuredOutput, max_tokens: int = 80) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, structured=constraint)


@real_engine
@pytest.mark.parametrize("kind", CONSTRAINTS)
async def test_constrained_output_fits(started: Started, kind: str) -> None:
    recorder, end = await generate(started.engine, GenerationSpec(PROMPT, constrained(CONSTRAINTS[kind])))
    assert end.reason is FinishReason.STOP
    assert re.fullmatch(VALID[kind], recorder.text)


@real_engine
@pytest.mark.parametrize(
    "constraint",
    [
        StructuredOutput(ConstraintKind.REGEX, "[a-"),
        StructuredOutput(ConstraintKind.JSON_SCHEMA, "{not json"),
        StructuredOutput(ConstraintKind.GRAMMAR, "root ::= missing"),
    ],
    ids=["regex", "json", "grammar"],
)
async def test_constraint_that_does_not_compile_fails_its_request_only(
    started: Started, constraint: StructuredOutput
) -> None:
    recorder = Recorder()
    try:
        await started.engine.submit("constraint", GenerationSpec(PROMPT, constrained(constraint)), recorder)
    except EngineRequestError:
        pass
    else:
        end = await recorder.end()
        assert end.reason is FinishReason.ERROR
        assert end.invalid_request
    _, after = await generate(started.engine, GenerationSpec(PROMPT, greedy(2)))
    assert after.reason is FinishReason.LENGTH


PENALTIES: dict[str, dict[str, float]] = {
    "none": {},
    "presence and frequency": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "repetition": {"repetition_penalty": 1.3},
    "all": {"presence_penalty": 0.3, "frequency_penalty": -0.2, "repetition_penalty": 1.1},
    "all, strong": {"presence_penalty": 2.0, "frequency_penalty": -1.0, "repetition_penalty": 0.5},
}


async def goes_on(started: Started, prompt: tuple[int, ...], sampling: SamplingParams, *cuts: int) -> Recorder:
    """Check that output that is cut after so many tokens goes on as if it had not been; returns the undisturbed one."""
    whole, end = await generate(started.engine, GenerationSpec(prompt, sampling))
    for cut in cuts:
        assert 0 < cut < len(whole.tokens)
        delivered = "".join(whole.texts[:cut])
        resume = ResumeRecord(tuple(whole.tokens[:cut]), len(delivered), started.identity.model.digest)
        rest, resumed_end = await generate(started.engine, GenerationSpec(prompt, sampling, resume=resume))
        assert whole.tokens[cut:] == rest.tokens
        assert whole.text == delivered + rest.text
        assert end.reason is resumed_end.reason
    return whole


@real_engine
@pytest.mark.parametrize("kind", CONSTRAINTS)
async def test_resumed_constrained_output_goes_on_wherever_it_was_cut(started: Started, kind: str) -> None:
    sampling = constrained(CONSTRAINTS[kind])
    tokens = len((await generate(started.engine, GenerationSpec(PROMPT, sampling)))[0].tokens)
    cuts = sorted({1, tokens // 4, tokens // 2, tokens - 2} & set(range(1, tokens)))
    whole = await goes_on(started, PROMPT, sampling, *cuts)
    assert re.fullmatch(VALID[kind], whole.text)


@real_engine
@pytest.mark.parametrize("kind", PENALTIES)
async def test_resumed_output_with_penalties_is_that_of_an_undisturbed_run(started: Started, kind: str) -> None:
    whole = await goes_on(started, PROMPT, greedy(60, **PENALTIES[kind]), 1, 13, 30, 59)
    if PENALTIES[kind]:
        plain, _ = await generate(started.engine, GenerationSpec(PROMPT, greedy(60)))
        assert whole.tokens != plain.tokens


@real_engine
@pytest.mark.parametrize("stop", [(), ("\x00never",)], ids=["plain", "stop"])
async def test_output_after_a_prompt_that_ends_inside_of_a_character_is_not_its_prompt(
    started: Started, tokenizer: Any, stop: tuple[str, ...]
) -> None:
    prompt = (*PROMPT, tokenizer.encode("你", add_special_tokens=False).ids[0])
    text = tokenizer.decode(prompt)
    assert text.endswith("\ufffd")
    sampling = greedy(12, stop=stop)
    whole = await goes_on(started, prompt, sampling, 1, 6)
    assert text.removesuffix("\ufffd")[:8] not in whole.text
    assert len(whole.text) <= len(tokenizer.decode(whole.tokens)) + 1


@real_engine
async def test_a_stop_string_of_the_prompt_ends_no_output(started: Started, tokenizer: Any) -> None:
    prompt = (*PROMPT, tokenizer.encode("你", add_special_tokens=False).ids[0])
    free, _ = await generate(started.engine, GenerationSpec(prompt, greedy(12)))
    stop = next(part for at in range(20) if (part := tokenizer.decode(prompt)[at : at + 4]) not in free.text)
    held, end = await generate(started.engine, GenerationSpec(prompt, greedy(12, stop=(stop,))))
    assert (free.tokens, free.text, FinishReason.LENGTH) == (held.tokens, held.text, end.reason)


@real_engine
async def test_a_prompt_is_as_likely_as_the_same_text_was_as_output(started: Started) -> None:
    whole, _ = await generate(started.engine, GenerationSpec(PROMPT, greedy(12, logprobs=2)))
    again, _ = await generate(started.engine, GenerationSpec((*PROMPT, *whole.tokens), greedy(1, prompt_logprobs=2)))
    assert again.prompt is not None
    own = list(again.prompt.logprobs[:: again.prompt.width])[-len(whole.tokens) :]
    assert own == pytest.approx([position.chosen.logprob for position in whole.logprobs], abs=1e-3)
    ranks = list(again.prompt.ranks)[-len(whole.tokens) :]
    assert ranks == [position.rank for position in whole.logprobs] == [1] * len(whole.tokens)


@real_engine
async def test_resumed_log_probabilities_go_on(started: Started) -> None:
    sampling = greedy(30, logprobs=3)
    whole, _ = await generate(started.engine, GenerationSpec(PROMPT, sampling))
    resume = ResumeRecord(tuple(whole.tokens[:12]), 0, started.identity.model.digest)
    rest, _ = await generate(started.engine, GenerationSpec(PROMPT, sampling, resume=resume))
    assert [position.chosen.token_id for position in rest.logprobs] == whole.tokens[12:]
    for before, after in zip(whole.logprobs[12:], rest.logprobs, strict=True):
        assert before.chosen.logprob == pytest.approx(after.chosen.logprob, abs=1e-3)
        assert len(after.top) == 3


@real_engine
@pytest.mark.parametrize("seed", [None, 11])
async def test_resumed_samples_are_valid_and_end_in_time(started: Started, seed: int | None) -> None:
    """Another draw, but within all bounds: the grammar holds over the cut, and max_tokens counts what was before."""
    structured = CONSTRAINTS["regex"]
    sampling = SamplingParams(max_tokens=80, temperature=1.0, seed=seed, structured=structured)
    whole, _ = await generate(started.engine, GenerationSpec(PROMPT, sampling))
    delivered = "".join(whole.texts[:5])
    resume = ResumeRecord(tuple(whole.tokens[:5]), len(delivered), started.identity.model.digest)
    rest, end = await generate(started.engine, GenerationSpec(PROMPT, sampling, resume=resume))
    assert re.fullmatch(PATTERN, delivered + rest.text)
    free = SamplingParams(max_tokens=40, temperature=1.0, seed=seed, ignore_eos=True)
    rest, end = await generate(started.engine, GenerationSpec(PROMPT, free, resume=resume))
    assert (35, FinishReason.LENGTH) == (len(rest.tokens), end.reason)


@real_engine
async def test_seeded_requests_with_long_prompts_leave_the_cpu_engine_alive(started: Started) -> None:
    begun = []
    for seed in range(8):
        prompt = tuple(3 + (seed * 131 + i * 17) % 1000 for i in range(700))
        sampling = SamplingParams(max_tokens=12, temperature=1.0, seed=seed, ignore_eos=True)
        begun.append(await begin(started.engine, GenerationSpec(prompt, sampling)))
    assert {(await recorder.end()).reason for _, recorder in begun} == {FinishReason.LENGTH}
    await started.engine.check_health()


@real_engine
async def test_samplers_of_all_kinds_work_together(started: Started) -> None:
    mixed = [
        SamplingParams(max_tokens=8, ignore_eos=True, top_p=0.9, top_k=40),
        SamplingParams(max_tokens=8, ignore_eos=True, min_p=0.05, repetition_penalty=1.2),
        SamplingParams(max_tokens=8, ignore_eos=True, presence_penalty=1.0, frequency_penalty=-0.5),
        SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0, logit_bias={777: 100.0}),
    ]
    recorders = [(await begin(started.engine, GenerationSpec(PROMPT, each)))[1] for each in mixed]
    assert {(await recorder.end()).output_tokens for recorder in recorders} == {8}
    assert recorders[3].tokens == [777] * 8


@real_engine
async def test_speculation_changes_speed_and_nothing_else(started: Started, speculating: Started) -> None:
    assert not speculating.identity.model.capabilities.min_p
    assert not speculating.identity.model.capabilities.logit_bias
    for prompt in REPEATING_PROMPTS:
        expected, _ = await generate(started.engine, GenerationSpec(prompt, greedy(48)))
        found, end = await generate(speculating.engine, GenerationSpec(prompt, greedy(48)))
        assert found.tokens == expected.tokens
        assert found.text == expected.text
        assert end.output_tokens == 48
    stats = speculating.engine.stats()
    assert 0 < stats.accepted_draft_tokens <= stats.draft_tokens
    assert stats.steps < stats.output_tokens


async def test_speculating_engine_refuses_what_it_would_drop(speculating: Started) -> None:
    with pytest.raises(EngineRequestError):
        await speculating.engine.submit("min-p", GenerationSpec(PROMPT, SamplingParams(4, min_p=0.1)), Recorder())


async def test_a_speculating_engine_resumes_penalties_or_says_that_it_does_not(speculating: Started) -> None:
    sampling = greedy(40, **PENALTIES["presence and frequency"])
    if speculating.identity.resumes_penalties:
        await goes_on(speculating, REPEATING_PROMPTS[0], sampling, 1, 13)
        return
    resume = ResumeRecord((3, 4), 2, speculating.identity.model.digest)
    with pytest.raises(EngineRequestError, match="penalties"):
        await speculating.engine.submit("penalties", GenerationSpec(PROMPT, sampling, resume=resume), Recorder())


async def test_one_rank_on_a_cpu_is_one_early_process_and_its_helpers_may_use_every_core(speculating: Started) -> None:
    engine = speculating.engine
    [process] = engine._launched.frontend.llm.engine_core.resources.engine_manager.processes
    [core] = engine.engine_pids()

    assert isinstance(process, EarlyCore)
    assert "VLLM::EngineCore" == " ".join(psutil.Process(core).cmdline()).strip()
    assert [] == psutil.Process(core).children()
    assert os.sched_getaffinity(core) == os.sched_getaffinity(0)


async def test_death_of_the_engine_ends_everything_and_is_told(speculating: Started) -> None:
    engine = speculating.engine
    processes = tree_of(engine.engine_pids())
    folders = own_socket_folders()
    begun = [await begin(engine, GenerationSpec(PROMPT, greedy(900))) for _ in range(4)]
    await asyncio.wait_for(begun[0][1].first.wait(), 60)
    aborting = asyncio.create_task(engine.abort([begun[3][0]]))
    os.kill(engine.engine_pids()[0], signal.SIGKILL)
    ends = [await recorder.end() for _, recorder in begun]
    assert {end.reason for end in ends[:3]} == {FinishReason.ERROR}
    assert all(end.error for end in ends[:3])
    await asyncio.wait_for(aborting, 30)
    with pytest.raises(EngineDeadError):
        await engine.check_health()
    with pytest.raises(EngineDeadError):
        await engine.submit("late", GenerationSpec(PROMPT, greedy(2)), Recorder())
    assert engine.stats().running == 0
    await engine.close()
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)
    assert len(folders - own_socket_folders()) == 1


def own_socket_folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob(f"penstock-engine-{os.getpid()}-*"))
