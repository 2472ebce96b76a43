from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engines.sim.core import BatchCore, CoreLimits


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
