"""The pure parts of recovery: what follows a lost attempt, where it may go on, and when silence means death."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.models import ResumeRecord
from cluster.wire.resume_record import resume_record_from_wire
from penstock.internal.v1 import replica_pb2 as pb
from router.generation.history import History
from router.generation.recovery import FOREIGN_GRANTS, Fit, Next, after_failure, fit
from router.links.abandoned import AbandonedAttempts
from router.links.failure import RecoveryLimits
from router.links.placement import Group
from router.links.stall import WatchedAttempt, stalled

LIMITS = RecoveryLimits(max_attempts=3, first_token_s=60.0, token_s=10.0)
HERE = Group("w1-h100-tp2-bf16", "w1")
OTHER_RANKS = Group("w1-h100-tp4-bf16", "w1")
OTHER_WEIGHTS = Group("w2-h100-tp2-bf16", "w2")
OTHER_TOKENIZER = Group("w1-h100-tp2-bf16", "w1", "t2")
MINE = Group("w1-h100-tp2-bf16", "w1", "t1")
UNKNOWN = Group("", "")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"lost": 1}, Next.AGAIN),
        ({"lost": 2, "tokens": 9}, Next.AGAIN),
        ({"lost": 3}, Next.FAIL),
        ({"lost": 1, "tokens": 9, "known": False}, Next.FAIL),
        ({"lost": 1, "tokens": 10}, Next.COMPLETE),
        ({"lost": 3, "tokens": 10}, Next.COMPLETE),
        ({"lost": 1, "cancelled": True}, Next.CANCELLED),
        ({"lost": 3, "cancelled": True, "known": False}, Next.CANCELLED),
    ],
    ids=str,
)
def test_what_follows_a_lost_attempt(facts: dict[str, int | bool], expected: Next) -> None:
    known = {"cancelled": False, "known": True, "tokens": 0, "max_tokens": 10, **facts}
    assert expected is after_failure(LIMITS, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("origin", "place", "elsewhere", "given_back", "expected"),
    [
        (HERE, HERE, [], 0, Fit.SAME),
        (HERE, HERE, [OTHER_RANKS], 9, Fit.SAME),
        (HERE, OTHER_RANKS, [HERE], 0, Fit.WAIT),
        (HERE, OTHER_RANKS, [HERE], FOREIGN_GRANTS, Fit.INEXACT),
        (HERE, OTHER_RANKS, [OTHER_WEIGHTS], 0, Fit.INEXACT),
        (HERE, OTHER_WEIGHTS, [OTHER_RANKS], 0, Fit.WAIT),
        (HERE, OTHER_WEIGHTS, [OTHER_RANKS], FOREIGN_GRANTS, Fit.NEVER),
        (HERE, OTHER_WEIGHTS, [OTHER_WEIGHTS], 0, Fit.NEVER),
        (HERE, UNKNOWN, [], 0, Fit.NEVER),
        (UNKNOWN, HERE, [], 0, Fit.INEXACT),
        (UNKNOWN, UNKNOWN, [], 0, Fit.INEXACT),
        (MINE, OTHER_TOKENIZER, [], 0, Fit.NEVER),
        (MINE, OTHER_TOKENIZER, [OTHER_TOKENIZER], 0, Fit.NEVER),
        (MINE, OTHER_TOKENIZER, [MINE], 0, Fit.WAIT),
        (MINE, OTHER_TOKENIZER, [MINE], FOREIGN_GRANTS, Fit.NEVER),
        (MINE, HERE, [OTHER_TOKENIZER], 0, Fit.SAME),
        (HERE, OTHER_TOKENIZER, [], 0, Fit.SAME),
    ],
)
def test_where_output_may_go_on(
    origin: Group, place: Group, elsewhere: list[Group], given_back: int, expected: Fit
) -> None:
    assert expected is fit(origin, place, elsewhere, given_back)


@pytest.mark.parametrize(
    ("attempts", "quiet_since", "expected"),
    [
        ([], 0.0, False),
        ([WatchedAttempt(0.0, begun=True)], 90.1, False),
        ([WatchedAttempt(0.0, begun=True)], 89.9, True),
        ([WatchedAttempt(0.0, begun=False)], 89.9, False),
        ([WatchedAttempt(39.9, begun=False)], 0.0, True),
        # Its prefill may be what the other one waits for.
        ([WatchedAttempt(95.0, begun=False), WatchedAttempt(0.0, begun=True)], 80.0, False),
        ([WatchedAttempt(95.0, begun=False), WatchedAttempt(0.0, begun=True)], 39.0, True),
        # It waits for the others: output of any of them is a sign of life.
        ([WatchedAttempt(0.0, begun=False)] * 5, 99.0, False),
    ],
)
def test_silence_counts_against_the_whole_replica(
    attempts: list[WatchedAttempt], quiet_since: float, expected: bool
) -> None:
    assert expected is stalled(attempts, quiet_since, 100.0, LIMITS)


def test_without_bounds_silence_means_nothing() -> None:
    patient = RecoveryLimits(first_token_s=0.0, token_s=0.0)
    assert not stalled([WatchedAttempt(0.0, True), WatchedAttempt(0.0, False)], 0.0, 1e9, patient)


def test_what_was_left_behind_is_told_once_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.links.abandoned.MOST", 3)
    left = AbandonedAttempts()
    for number in range(4):
        left.add("r-even" if number % 2 == 0 else "r-odd", f"q{number}", "a.1")
    assert [("q2", "a.1")] == left.take("r-even")
    assert [("q1", "a.1"), ("q3", "a.1")] == left.take("r-odd")
    assert [] == left.take("r-odd")


@pytest.mark.slow
@given(st.lists(st.tuples(st.lists(st.integers(0, 2**32 - 1), max_size=3), st.text(max_size=4)), max_size=300))
def test_a_replica_reads_all_output_and_its_deltas_from_a_record(deltas: list[tuple[list[int], str]]) -> None:
    history = History()
    for ids, text in deltas:
        history.add(ids, text)
    sent = history.record("w1", "f1").SerializeToString()

    tokens, text = tuple(token for ids, _ in deltas for token in ids), "".join(text for _, text in deltas)
    lengths = tuple((len(ids), len(text)) for ids, text in deltas)
    expected = ResumeRecord(tokens, len(text), "w1", text, lengths, "f1")
    assert expected == resume_record_from_wire(pb.ResumeRecord.FromString(sent))


def test_remembering_output_costs_less_than_twenty_five_bytes_per_token() -> None:
    words = [f"w{number:05}"[-5:] for number in range(20_000)]
    tracemalloc.start()
    history = History()
    for number, word in enumerate(words):
        # A string of its own, as each delta brings one.
        history.add([number], word[:2] + word[2:])
    used = tracemalloc.get_traced_memory()[0] / len(words)
    tracemalloc.stop()
    assert used < 25
