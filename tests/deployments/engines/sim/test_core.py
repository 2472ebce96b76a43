from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engines.sim import NO_PARTS, BatchCore, CoreLimits, Parts
from tests.deployments.engines.sim.plain_core import PlainCore


def core(sequences: int = 4, tokens: int = 64, kv_tokens: int = 10_000, block_size: int = 16) -> BatchCore:
    return BatchCore(CoreLimits(sequences, tokens, kv_tokens, block_size))


def test_decodes_go_before_prefills() -> None:
    batch = core(tokens=20)
    batch.add("old", 5)
    assert batch.step().produced == ("old",)
    batch.add("new", 100)
    step = batch.step()
    assert step.produced == ("old",)
    assert step.scheduled == ("old", "new")
    assert step.tokens == 20


def test_long_prefill_is_split_by_the_budget() -> None:
    batch = core(tokens=40)
    batch.add("long", 100)
    steps = [batch.step() for _ in range(4)]
    assert [step.tokens for step in steps] == [40, 40, 20, 1]
    assert [step.produced for step in steps] == [(), (), ("long",), ("long",)]


def test_batch_limit_holds_and_drains_without_preemption() -> None:
    batch = core(sequences=4)
    for name in "abcdef":
        batch.add(name, 2)
    batch.step()
    assert (batch.running, batch.waiting) == (4, 2)
    batch.set_limits(2, None)
    assert batch.step().preempted == ()
    assert batch.running == 4
    batch.remove("a")
    batch.remove("b")
    batch.step()
    assert (batch.running, batch.waiting) == (2, 2)
    batch.remove("c")
    assert batch.step().admitted == ("e",)


def test_token_budget_never_starves_the_batch() -> None:
    batch = core(sequences=4)
    batch.set_limits(None, 1)
    assert batch.token_budget == 4


def test_full_cache_makes_the_last_sequence_start_over() -> None:
    batch = core(sequences=2, tokens=64, kv_tokens=64, block_size=16)
    batch.add("first", 30)
    batch.add("last", 30)
    assert len(batch.step().produced) == 2
    preempted = [name for _ in range(5) for name in batch.step().preempted]
    assert preempted == ["last"]
    batch.remove("first")
    again = batch.step()
    assert again.admitted == ("last",)
    # Everything it had is computed once more.
    assert again.tokens > 30


def test_same_beginning_is_computed_once() -> None:
    batch = core()
    batch.add("first", 40, [1, 2])
    batch.step()
    batch.remove("first")
    batch.add("second", 40, [1, 2])
    assert batch.step().tokens == 8
    assert batch.cached_tokens("second") == 32


def test_a_prompt_is_never_cached_as_a_whole() -> None:
    batch = core()
    batch.add("first", 32, [1, 2])
    batch.step()
    batch.add("second", 32, [1, 2])
    batch.step()
    assert batch.cached_tokens("second") == 16


def test_removed_sequences_free_their_blocks() -> None:
    batch = core()
    batch.add("a", 50, [1, 2, 3])
    batch.step()
    assert batch.kv_usage > 0
    batch.remove("a")
    batch.remove("unknown")
    assert batch.kv_usage == 0


operation = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 60), st.integers(0, 3)),
    st.tuples(st.just("step"), st.just(0), st.just(0)),
    st.tuples(st.just("remove"), st.integers(0, 20), st.just(0)),
    st.tuples(st.just("limit"), st.integers(1, 6), st.integers(1, 80)),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(operation, max_size=60))
def test_bounds_hold_and_all_work_ends(operations: list[tuple[str, int, int]]) -> None:
    batch = core(sequences=5, tokens=48, kv_tokens=160, block_size=8)
    live: dict[str, int] = {}
    for number, (what, first, second) in enumerate(operations):
        if what == "add":
            name = f"s{number}"
            live[name] = 0
            batch.add(name, first, [second * 100 + i for i in range(first // 8)])
        elif what == "remove" and live:
            name = sorted(live)[first % len(live)]
            del live[name]
            batch.remove(name)
        elif what == "limit":
            batch.set_limits(first, second)
        else:
            _step(batch, live)
        assert 0.0 <= batch.kv_usage <= 1.0
        assert batch.running + batch.waiting == len(live)
    for _ in range(5000):
        if not live:
            break
        _step(batch, live)
    assert not live
    assert batch.kv_usage == 0.0


def _step(batch: BatchCore, live: dict[str, int]) -> None:
    before = batch.running
    step = batch.step()
    assert step.tokens <= batch.token_budget
    assert len(step.scheduled) <= max(batch.sequence_limit, before)
    for name in step.produced:
        live[name] += 1
        if live[name] == 20:
            del live[name]
            batch.remove(name)


several = st.one_of(operation, st.tuples(st.sampled_from(["run", "fill"]), st.integers(1, 40), st.just(0)))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(several, max_size=80), st.sampled_from([(5, 48, 160, 8), (6, 4, 400, 16), (4, 64, 96, 1)]))
def test_counting_decodes_as_a_group_changes_nothing(
    operations: list[tuple[str, int, int]], limits: tuple[int, int, int, int]
) -> None:
    fast, plain = BatchCore(CoreLimits(*limits)), PlainCore(CoreLimits(*limits))
    live: list[str] = []
    for number, (what, first, second) in enumerate(operations):
        if what == "add":
            live.append(f"s{number}")
            hashes = [second * 100 + i for i in range(first // limits[3])] if second else []
            for each in (fast, plain):
                each.add(live[-1], first, hashes)
        elif what == "remove" and live:
            name = live.pop(first % len(live))
            fast.remove(name)
            plain.remove(name)
        elif what == "limit":
            fast.set_limits(first, second)
            plain.set_limits(first, second)
        elif what == "run":
            turns = fast.steady_turns(first)
            fast.run(turns)
            for _ in range(turns):
                step = plain.step()
                assert step.produced == step.scheduled
            if turns:
                assert step.kv_tokens == fast.decode_kv_tokens
        elif what == "fill":
            _fill(fast, plain, first)
        else:
            assert plain.step() == fast.step()
        assert (plain.running, plain.waiting, plain.kv_usage) == (fast.running, fast.waiting, fast.kv_usage)
        for name in live:
            assert plain.entries[name].produced == fast.output_tokens(name)
            assert plain.cached_tokens(name) == fast.cached_tokens(name)


def _fill(fast: BatchCore, plain: PlainCore, most: int) -> None:
    """Let one do several parts of a prompt at once and the other one by one."""
    parts = fast.parts(most)
    if parts.turns:
        fast.fill(parts.turns, parts.share)
    for turn in range(1, parts.turns + 1):
        step = plain.step()
        assert (fast.decoding + 1, fast.decoding) == (len(step.scheduled), len(step.produced))
        assert fast.decoding + parts.share == step.tokens
        read = fast.decode_kv_tokens - (parts.turns - turn) * fast.decoding
        assert read + parts.computed + turn * parts.share == step.kv_tokens


def test_steady_turns_end_where_the_cache_is_full() -> None:
    batch = core(sequences=2, tokens=64, kv_tokens=64, block_size=16)
    batch.add("a", 30)
    batch.add("b", 10)
    assert len(batch.step().produced) == 2
    turns = batch.steady_turns(100)
    assert turns == 6
    batch.run(turns)
    assert batch.kv_usage == 1.0
    assert batch.step().preempted == ("b",)


def test_steady_turns_are_none_where_somebody_could_enter() -> None:
    batch = core()
    batch.add("a", 30)
    batch.step()
    batch.add("b", 30)
    assert batch.steady_turns(10) == 0
    batch.set_limits(1, None)
    assert batch.steady_turns(10) == 10


def test_parts_of_a_prompt_leave_the_step_that_ends_it_to_a_turn() -> None:
    batch = core(sequences=2, tokens=16, kv_tokens=400, block_size=16)
    batch.add("a", 10)
    batch.step()
    batch.add("long", 100)
    assert batch.parts(10) == NO_PARTS
    batch.turn()
    assert batch.parts(3) == Parts(3, 15, 15)
    assert batch.parts(10) == Parts(5, 15, 15)
    batch.fill(5, 15)
    assert batch.turn().prefilled == ("long",)


def test_prompts_that_others_may_share_have_no_parts_at_once() -> None:
    batch = core(sequences=2, tokens=16, kv_tokens=400, block_size=16)
    batch.add("long", 100, range(6))
    batch.turn()
    assert batch.parts(10) == NO_PARTS


def test_there_are_no_parts_where_the_cache_might_become_full() -> None:
    batch = core(sequences=2, tokens=8, kv_tokens=112, block_size=16)
    batch.add("a", 10)
    batch.step()
    batch.step()
    batch.add("long", 96)
    batch.turn()
    assert batch.parts(5) == Parts(5, 7, 7)
    # Beside the prompt's six blocks of the seven, the decode needs a second one.
    assert batch.parts(12) == NO_PARTS


def test_nobody_enters_whose_prefill_would_not_find_room_to_its_end() -> None:
    batch = core(sequences=2, tokens=16, kv_tokens=96, block_size=16)
    batch.add("first", 32)
    batch.step()
    batch.add("long", 80)
    batch.step()
    assert (batch.running, batch.waiting) == (1, 1)
    batch.remove("first")
    assert batch.step().admitted == ("long",)
