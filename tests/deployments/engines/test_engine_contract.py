"""What every engine promises, tested on the simulated and the real one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import EngineRequestError
from cluster.models import GenerationSpec, ResumeRecord
from penstock.models import FinishReason, SamplingParams
from tests.deployments.engines.conftest import CONTEXT_TOKENS, Started
from tests.deployments.engines.recorder import Recorder, begin, generate, greedy

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
]

PROMPT = tuple(range(600, 640))


async def test_tokens_stream_and_one_end_follows(started: Started, tokenizer: Any) -> None:
    recorder, end = await generate(started.engine, GenerationSpec(PROMPT, greedy(20)))
    assert end.reason is FinishReason.LENGTH
    assert end.output_tokens == len(recorder.tokens) == 20
    assert len(recorder.texts) > 1
    # Text of a character that is not complete when the output ends never comes.
    assert tokenizer.decode(recorder.tokens).rstrip("\ufffd").startswith(recorder.text.rstrip("\ufffd"))
    assert recorder.deltas_with_logprobs == 0


async def test_greedy_output_repeats(started: Started) -> None:
    first, _ = await generate(started.engine, GenerationSpec(PROMPT, greedy(24)))
    second, _ = await generate(started.engine, GenerationSpec(PROMPT, greedy(24)))
    assert first.tokens == second.tokens
    assert first.text == second.text


async def test_stop_string_across_tokens_is_found_and_never_sent(started: Started) -> None:
    spec = GenerationSpec(tuple(range(700, 730)), greedy(40))
    free, _ = await generate(started.engine, spec)
    middle = sum(len(text) for text in free.texts[:6])
    stop = free.text[middle - 1 : middle + 2]
    assert len(stop) == 3
    stopped, end = await generate(
        started.engine, GenerationSpec(spec.prompt_token_ids, greedy(40, stop=(stop, "\x00never")))
    )
    assert stopped.text == free.text[: free.text.index(stop)]
    assert end.reason is FinishReason.STOP
    assert end.stop_match == stop


async def test_stop_token_ends_output(started: Started) -> None:
    spec = GenerationSpec(PROMPT, greedy(12))
    free, _ = await generate(started.engine, spec)
    stop_id = free.tokens[5]
    stopped, end = await generate(started.engine, GenerationSpec(PROMPT, greedy(12, stop_token_ids=(stop_id,))))
    assert stopped.tokens == free.tokens[: free.tokens.index(stop_id) + 1]
    assert end.reason is FinishReason.STOP
    assert end.stop_match == str(stop_id)


async def test_output_ends_where_the_context_does(started: Started) -> None:
    prompt = tuple(100 + i % 800 for i in range(CONTEXT_TOKENS - 5))
    recorder, end = await generate(started.engine, GenerationSpec(prompt, greedy(50)))
    assert end.reason is FinishReason.LENGTH
    assert 4 <= len(recorder.tokens) <= 6


async def test_logprobs_come_with_their_tokens(started: Started) -> None:
    recorder, _ = await generate(started.engine, GenerationSpec(PROMPT, greedy(8, logprobs=3)))
    assert [position.chosen.token_id for position in recorder.logprobs] == recorder.tokens
    for position in recorder.logprobs:
        values = [each.logprob for each in position.top]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        # Another token may be exactly as likely as the drawn one.
        assert position.chosen.logprob == position.top[0].logprob
        assert all(-9999.0 <= value <= 0.0 for value in values)


async def test_logprobs_without_alternatives(started: Started) -> None:
    recorder, _ = await generate(started.engine, GenerationSpec(PROMPT, greedy(4, logprobs=0)))
    assert len(recorder.logprobs) == 4
    assert all(position.top == () for position in recorder.logprobs)


async def test_alternatives_are_as_many_as_asked_for_beside_who_asks_for_more(started: Started) -> None:
    asked = (0, 5, 2)
    begun = [await begin(started.engine, GenerationSpec(PROMPT, greedy(30, logprobs=number))) for number in asked]
    for number, (_, recorder) in zip(asked, begun, strict=True):
        await recorder.end()
        assert {len(position.top) for position in recorder.logprobs} == {number}


@pytest.mark.parametrize("alternatives", [0, 3])
async def test_log_probabilities_of_the_prompt_come_once_for_all_tokens_but_the_first(
    started: Started, alternatives: int
) -> None:
    sampling = greedy(4, prompt_logprobs=alternatives)
    for _ in range(2):
        recorder, end = await generate(started.engine, GenerationSpec(PROMPT, sampling))
        found = recorder.prompt
        assert found is not None
        assert (found.rows, found.width) == (len(PROMPT) - 1, 1 + alternatives)
        assert list(found.token_ids[:: found.width]) == list(PROMPT[1:])
        for row in range(found.rows):
            own, *top = found.logprobs[row * found.width : (row + 1) * found.width]
            assert top == sorted(top, reverse=True)
            assert all(-9999.0 <= value <= 0.0 for value in (own, *top))
            assert found.ranks[row] >= 1
            if top:
                assert (own == top[0]) == (found.ranks[row] == 1)
        # Not even the second time: the cache keeps no log probabilities.
        assert end.cached_tokens == 0


async def test_a_prompt_of_one_token_has_no_log_probability(started: Started) -> None:
    recorder, _ = await generate(started.engine, GenerationSpec(PROMPT[:1], greedy(2, prompt_logprobs=1)))
    assert recorder.prompt is not None
    assert recorder.prompt.rows == 0


async def test_a_resumed_sequence_has_the_log_probabilities_of_its_prompt_alone(started: Started) -> None:
    sampling = greedy(9, prompt_logprobs=1)
    whole, _ = await generate(started.engine, GenerationSpec(PROMPT, sampling))
    resume = ResumeRecord(tuple(whole.tokens[:4]), 0, started.identity.model.digest)
    rest, _ = await generate(started.engine, GenerationSpec(PROMPT, sampling, resume=resume))
    assert whole.tokens[4:] == rest.tokens
    assert whole.prompt is not None
    assert rest.prompt is not None
    assert whole.prompt.token_ids == rest.prompt.token_ids
    assert list(whole.prompt.logprobs) == pytest.approx(list(rest.prompt.logprobs), abs=1e-3)


async def test_seed_decides_the_sample(started: Started) -> None:
    def sampled(seed: int) -> GenerationSpec:
        return GenerationSpec(PROMPT, SamplingParams(max_tokens=24, temperature=1.0, seed=seed, ignore_eos=True))

    first, _ = await generate(started.engine, sampled(7))
    again, _ = await generate(started.engine, sampled(7))
    other, _ = await generate(started.engine, sampled(8))
    assert first.tokens == again.tokens
    assert first.tokens != other.tokens


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.DEADLINE])
async def test_abort_frees_the_slot(started: Started, reason: FinishReason) -> None:
    sequence_id, recorder = await begin(started.engine, GenerationSpec(PROMPT, greedy(900)))
    await asyncio.wait_for(recorder.first.wait(), 60)
    await started.engine.abort([sequence_id, "unknown"], reason)
    assert recorder.ended
    end = await recorder.end()
    assert end.reason is reason
    assert end.output_tokens == len(recorder.tokens)
    stats = started.engine.stats()
    assert (stats.running, stats.waiting, stats.prefill_tokens) == (0, 0, 0)


@pytest.mark.parametrize("release_text", [False, True])
async def test_an_abort_brings_the_text_that_was_held_back_where_it_is_asked_to(
    started: Started, tokenizer: Any, release_text: bool
) -> None:
    """Not otherwise: where another engine goes on, it may become a stop string."""
    ten = asyncio.Event()
    recorder = Recorder(lambda: ten.set() if len(recorder.tokens) >= 10 else None)
    spec = GenerationSpec(PROMPT, greedy(900, stop=("\x00" * 30,)))
    sequence_id, _ = await begin(started.engine, spec, recorder)
    await asyncio.wait_for(ten.wait(), 60)
    await started.engine.abort([sequence_id], release_text=release_text)
    await recorder.end()
    whole = tokenizer.decode(recorder.tokens).rstrip("\ufffd")
    held_back = len(whole) - len(recorder.text.rstrip("\ufffd"))
    assert whole.startswith(recorder.text.rstrip("\ufffd"))
    assert (0 if release_text else 29) == held_back


async def test_aborts_at_the_same_time_all_free_their_slots(started: Started) -> None:
    begun = [await begin(started.engine, GenerationSpec(PROMPT, greedy(900))) for _ in range(12)]
    await asyncio.wait_for(begun[0][1].first.wait(), 60)
    await asyncio.gather(*(started.engine.abort([sequence_id]) for sequence_id, _ in begun))
    assert all(recorder.ended for _, recorder in begun)
    assert started.engine.stats().running == 0


async def test_abort_of_what_ended_returns(started: Started) -> None:
    sequence_id, recorder = await begin(started.engine, GenerationSpec(PROMPT, greedy(2)))
    end = await recorder.end()
    await started.engine.abort([sequence_id])
    assert end.reason is FinishReason.LENGTH


async def test_lowered_batch_limit_holds(started: Started) -> None:
    assert started.identity.live_batch_limits
    largest = started.identity.windows.sequences
    in_force, _ = await started.engine.set_batch_limits(3, None)
    assert in_force == started.engine.stats().batch_limit == 3
    seen: list[int] = []
    recorders = [Recorder(lambda: seen.append(started.engine.stats().running)) for _ in range(10)]
    try:
        for recorder in recorders:
            await begin(started.engine, GenerationSpec(PROMPT, greedy(20)), recorder)
        for recorder in recorders:
            assert (await recorder.end()).output_tokens == 20
    finally:
        assert await started.engine.set_batch_limits(largest, None) == (largest, started.engine.stats().token_budget)
    assert max(seen) == 3


async def test_limits_are_bounded_by_the_start_values(started: Started) -> None:
    largest = started.identity.windows.sequences
    assert (await started.engine.set_batch_limits(0, None))[0] == 1
    assert (await started.engine.set_batch_limits(10**6, None))[0] == largest


@pytest.mark.parametrize(
    "spec",
    [
        GenerationSpec((5, 10**6), greedy()),
        GenerationSpec((), greedy()),
        GenerationSpec(tuple([5] * CONTEXT_TOKENS), greedy()),
        GenerationSpec((5, 6), greedy(), lora_adapter="unknown"),
    ],
    ids=["token id", "empty", "too long", "adapter"],
)
async def test_bad_request_is_refused_and_harms_nobody(started: Started, spec: GenerationSpec) -> None:
    recorder = Recorder()
    with pytest.raises(EngineRequestError):
        await started.engine.submit("bad", spec, recorder)
    assert not recorder.ended
    _, end = await generate(started.engine, GenerationSpec(PROMPT, greedy(2)))
    assert end.reason is FinishReason.LENGTH
    assert started.engine.stats().prefill_tokens == 0


async def test_sequence_id_in_use_is_refused(started: Started) -> None:
    sequence_id, recorder = await begin(started.engine, GenerationSpec(PROMPT, greedy(900)))
    with pytest.raises(EngineRequestError):
        await started.engine.submit(sequence_id, GenerationSpec(PROMPT, greedy(2)), Recorder())
    await started.engine.abort([sequence_id])
    assert recorder.ended


async def test_same_prompt_comes_from_the_prefix_cache(started: Started) -> None:
    prompt = tuple(300 + i % 500 for i in range(200))
    before = started.engine.stats()
    _, first = await generate(started.engine, GenerationSpec(prompt, greedy(2)))
    _, second = await generate(started.engine, GenerationSpec(prompt, greedy(2)))
    _, salted = await generate(started.engine, GenerationSpec(prompt, greedy(2), cache_salt="another tenant"))
    assert first.cached_tokens == 0
    assert second.cached_tokens >= 160
    assert salted.cached_tokens == 0
    after = started.engine.stats()
    assert after.cached_tokens - before.cached_tokens == second.cached_tokens
    assert after.prompt_tokens - before.prompt_tokens == 600


async def test_receipt_times_fit_the_wall_clock(started: Started) -> None:
    loop = asyncio.get_running_loop()
    start, busy_s = loop.time(), started.engine.stats().busy_s
    _, end = await generate(started.engine, GenerationSpec(PROMPT, greedy(30)))
    wall = loop.time() - start
    assert 0 <= end.engine_wait_s <= end.prefill_s
    assert end.decode_s > 0
    assert end.prefill_s + end.decode_s <= wall
    # Alone in the batch a sequence pays for every step.
    assert 0 < end.gpu_seconds <= wall
    assert started.engine.stats().busy_s - busy_s == pytest.approx(end.gpu_seconds, rel=0.5)


async def test_sequences_share_what_a_step_costs(started: Started) -> None:
    loop = asyncio.get_running_loop()
    start, before = loop.time(), started.engine.stats().busy_s
    begun = [await begin(started.engine, GenerationSpec(PROMPT, greedy(40))) for _ in range(16)]
    ends = [await recorder.end() for _, recorder in begun]
    wall = loop.time() - start
    # Not less than of the wall clock: this process may stand still while the engine has nothing to do.
    busy_s = started.engine.stats().busy_s - before
    assert busy_s * 0.3 < sum(end.gpu_seconds for end in ends) <= wall * 1.02


async def test_resumed_sequence_goes_on_token_for_token(started: Started) -> None:
    prompt = tuple(range(500, 540))
    whole, _ = await generate(started.engine, GenerationSpec(prompt, greedy(40)))
    delivered_text = "".join(whole.texts[:15])
    resume = ResumeRecord(tuple(whole.tokens[:15]), len(delivered_text), started.identity.model.digest)
    rest, end = await generate(started.engine, GenerationSpec(prompt, greedy(40), resume=resume))
    assert rest.tokens == whole.tokens[15:]
    assert delivered_text + rest.text == whole.text
    assert end.output_tokens == 25


async def test_resumed_stop_string_may_begin_in_what_was_held_back(started: Started) -> None:
    prompt = tuple(range(550, 590))
    whole, _ = await generate(started.engine, GenerationSpec(prompt, greedy(40)))
    # A stop string that lies across the cut and occurs nowhere before it.
    kept, cut, stop = next(
        (kept, cut, stop)
        for kept in range(10, 30)
        if (cut := sum(len(text) for text in whole.texts[:kept])) >= 2
        and len(stop := whole.text[cut - 1 : cut + 2]) == 3
        and whole.text.index(stop) == cut - 1
    )
    resume = ResumeRecord(tuple(whole.tokens[:kept]), cut - 2, started.identity.model.digest)
    rest, end = await generate(started.engine, GenerationSpec(prompt, greedy(40, stop=(stop,)), resume=resume))
    assert end.stop_match == stop
    assert rest.text == whole.text[cut - 2 : cut - 1]


async def test_a_sequence_whose_end_was_lost_ends_without_another_token(started: Started) -> None:
    """All tokens were delivered, and then the replica died: whatever ended the output is found in it."""
    prompt, digest = tuple(range(550, 590)), started.identity.model.digest
    whole, _ = await generate(started.engine, GenerationSpec(prompt, greedy(40)))
    middle = sum(len(text) for text in whole.texts[:12])
    stop = whole.text[middle - 1 : middle + 2]
    endings = {
        stop: greedy(40, stop=(stop, "\x00never")),
        str(whole.tokens[9]): greedy(40, stop_token_ids=(whole.tokens[9],), min_tokens=1),
    }
    for match, sampling in endings.items():
        complete, end = await generate(started.engine, GenerationSpec(prompt, sampling))
        assert FinishReason.STOP is end.reason
        assert len(complete.tokens) < 40
        resume = ResumeRecord(tuple(complete.tokens), len(complete.text), digest)
        rest, again = await generate(started.engine, GenerationSpec(prompt, sampling, resume=resume))
        assert ([], "") == (rest.tokens, rest.text)
        assert (FinishReason.STOP, match, 0) == (again.reason, again.stop_match, again.output_tokens)
        # One token less, and it is found by going on.
        lacking = ResumeRecord(tuple(complete.tokens[:-1]), 0, digest)
        rest, again = await generate(started.engine, GenerationSpec(prompt, sampling, resume=lacking))
        assert (complete.tokens[-1:], complete.text) == (rest.tokens, rest.text)
    assert 0 == started.engine.stats().running


async def test_resume_of_a_finished_sequence_is_refused(started: Started) -> None:
    resume = ResumeRecord((5, 6, 7), 0, started.identity.model.digest)
    with pytest.raises(EngineRequestError):
        await started.engine.submit("late", GenerationSpec(PROMPT, greedy(3), resume=resume), Recorder())


async def test_counters_follow_the_work(started: Started) -> None:
    before = started.engine.stats()
    await generate(started.engine, GenerationSpec(PROMPT, greedy(10)))
    after = started.engine.stats()
    assert after.output_tokens - before.output_tokens == 10
    assert after.prompt_tokens - before.prompt_tokens == len(PROMPT)
    assert after.steps - before.steps >= 10
    assert (after.running, after.waiting, after.kv_usage) == (0, 0, 0.0)


async def test_identity_says_what_runs(started: Started) -> None:
    identity = started.identity
    assert identity.model.max_context_tokens == CONTEXT_TOKENS
    assert identity.group_id.startswith(identity.model.digest[:12])
    assert "-tp1-" in identity.group_id
    assert set(identity.tokenizer_files) >= {"tokenizer.json", "tokenizer_config.json"}
    assert identity.windows.kv_tokens >= CONTEXT_TOKENS
    await started.engine.check_health()


async def test_an_adapter_that_can_not_be_loaded_is_refused(started: Started, tmp_path: Path) -> None:
    with pytest.raises(EngineRequestError, match="adapter"):
        await started.engine.load_adapter("empty", tmp_path)
    await started.engine.unload_adapter("empty")
    recorder, _end = await generate(started.engine, GenerationSpec((5, 6), greedy()))
    assert recorder.tokens


async def test_an_engine_that_slept_goes_on_as_before(started: Started) -> None:
    before, _ = await generate(started.engine, GenerationSpec(PROMPT, greedy(12)))
    await started.engine.sleep()
    await started.engine.check_health()
    await started.engine.set_batch_limits(3, None)
    adapter = asyncio.create_task(started.engine.unload_adapter("nobody has it"))
    await asyncio.sleep(0)
    assert not adapter.done()
    await started.engine.wake()
    await adapter
    await started.engine.wake()
    await started.engine.set_batch_limits(64, None)
    after, end = await generate(started.engine, GenerationSpec(PROMPT, greedy(12)))
    assert before.tokens == after.tokens
    assert 0 == end.cached_tokens or started.identity.hardware == "sim"


async def test_an_engine_says_whether_its_platform_can_sleep(started: Started) -> None:
    """A CPU's can't: vLLM takes the calls, and frees nothing."""
    assert (started.identity.hardware == "sim") is started.identity.sleeps
