"""The table of a choice's states, walked: what the table says is what a choice does, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import pytest

from cluster.errors import ShuttingDownError
from cluster.queue.entries import Grant
from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import types_pb2 as types
from router.generation.choice import Choice
from router.generation.choice_state import TRANSITIONS, ChoiceEvent, ChoiceState, state_after
from router.links.failure import Failure, RecoveryLimits
from router.links.placement import Placement
from tests.cluster.queue.backends import entry

S, E = ChoiceState, ChoiceEvent
CANCELLED = types.FINISH_REASON_CANCELLED


def grant(choice: Choice) -> None:
    place = Placement(Mock(replica_id="r1", output_at=0.0), "g", 0.0, "")
    choice.run_on(Grant("q", f"{choice.attempt}.1", "r1"), place)


def died(choice: Choice) -> None:
    choice.on_end(pb.AttemptEnd(finish_reason=types.FINISH_REASON_ERROR, engine_died=True))


def left(choice: Choice) -> None:
    choice.leave(ShuttingDownError("bye"))


def ended(choice: Choice) -> None:
    choice.on_end(pb.AttemptEnd(finish_reason=types.FINISH_REASON_STOP))


def moved(choice: Choice) -> None:
    choice.ordered("moved")


def refused(choice: Choice) -> None:
    choice.on_refused(pb.Refusal(reason=pb.REFUSAL_REASON_WINDOW_FULL))


REACH: dict[ChoiceState, tuple[Callable[[Choice], None], ...]] = {
    S.WAITING: (),
    S.HELD: (grant, died),
    S.RUNNING: (grant,),
    S.YIELDING: (grant, lambda choice: choice.ordered("preempt")),
    S.STOPPING: (grant, Choice.cancel),
    S.LEFT: (grant, left),
    S.ENDED: (grant, ended),
}
"""How a choice gets into each state."""

CAUSES: dict[ChoiceEvent, tuple[Callable[[Choice], None], ...]] = {
    E.PLACE: (grant,),
    E.YIELD: (lambda choice: choice.ordered("preempt"),),
    E.STOP: (Choice.cancel, lambda choice: choice.ordered("cancel")),
    E.GO_ON: (lambda choice: choice.on_lost(Failure.LINK), refused),
    E.HOLD: (died,),
    E.LINE_UP: (Choice.line_up,),
    E.LEAVE: (left,),
    E.END: (moved,),
}
"""What causes each event."""

INSTEAD = {
    # What was told to stop ends where others would go on.
    (S.STOPPING, E.GO_ON): S.ENDED,
    (S.STOPPING, E.HOLD): S.ENDED,
}
"""Where a cause leads when its event does not apply, if not to where it was."""


def in_state(state: ChoiceState) -> Choice:
    choice = Choice(0, entry("q"), pb.Start(), Mock(recovery=RecoveryLimits(3, 60.0, 60.0)))
    for step in REACH[state]:
        step(choice)
    assert state is choice.state
    return choice


def test_every_event_and_state_is_known() -> None:
    assert set(E) == set(TRANSITIONS) == set(CAUSES)
    assert set(S) == set(REACH)


@pytest.mark.parametrize("event", E, ids=lambda event: event.value)
@pytest.mark.parametrize("state", S, ids=lambda state: state.value)
def test_a_choice_goes_where_the_table_says(state: ChoiceState, event: ChoiceEvent) -> None:
    if event is E.PLACE and not state.waits:
        pytest.skip("the pool gives places only to choices that wait")
    expected = state_after(state, event) or INSTEAD.get((state, event), state)
    for cause in CAUSES[event]:
        choice = in_state(state)
        cause(choice)
        assert expected is choice.state


def test_what_is_over_stays_over() -> None:
    for table in TRANSITIONS.values():
        assert all(after.over for before, after in table.items() if before.over)


@pytest.mark.parametrize("state", [state for state in S if not state.over], ids=lambda state: state.value)
def test_a_choice_that_is_over_says_so_once(state: ChoiceState) -> None:
    choice, wake, tell_end = in_state(state), Mock(), Mock()
    choice.bind(wake, tell_end)
    moved(choice)
    choice.cancel()
    moved(choice)
    tell_end.assert_called_once_with()


def test_a_state_either_waits_runs_or_is_over() -> None:
    assert {1} == {state.waits + state.runs + state.over for state in S}
