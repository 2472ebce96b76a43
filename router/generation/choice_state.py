"""States of a choice, and what leads from one to another. Pure: the table is all there is."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class ChoiceState(enum.Enum):
    """State of a choice."""

    WAITING = "waiting"
    """In line for a place on a replica."""
    HELD = "held"
    """Not in line. An engine died under it before its first output, and it has to run alone when its turn comes."""
    RUNNING = "running"
    """On a replica: its start was sent, output may come."""
    YIELDING = "yielding"
    """Running, and told to make room. It waits again when its attempt has stopped."""
    STOPPING = "stopping"
    """Running, and told to stop. It ends when its attempt has stopped."""
    LEFT = "left"
    """Over in this call. Its attempt, or what the replica keeps of it, waits for the client to come back."""
    ENDED = "ended"

    def __init__(self, word: str) -> None:
        self.waits = word in ("waiting", "held")
        """Whether it has no place."""
        self.runs = word in ("running", "yielding", "stopping")
        """Whether it has a place."""
        self.over = word in ("left", "ended")


class ChoiceEvent(enum.Enum):
    """What happens to a choice."""

    PLACE = "place"
    """It gets a place: a grant, or an attempt that it takes over."""
    YIELD = "yield"
    """The queue wants its place for another request."""
    STOP = "stop"
    """Its client or an operator cancels it."""
    GO_ON = "go_on"
    """Its attempt is over, and it waits for another place."""
    HOLD = "hold"
    """As GO_ON, but its engine died before its first output."""
    LINE_UP = "line_up"
    """It may stand in line again."""
    LEAVE = "leave"
    """Its call ends, and its attempt is left to the client's next call."""
    END = "end"


_S, _E = ChoiceState, ChoiceEvent
_RUNS = (_S.RUNNING, _S.YIELDING, _S.STOPPING)
_LIVES = (_S.WAITING, _S.HELD, *_RUNS)

TRANSITIONS: Mapping[ChoiceEvent, Mapping[ChoiceState, ChoiceState]] = MappingProxyType(
    {
        _E.PLACE: {_S.WAITING: _S.RUNNING, _S.HELD: _S.RUNNING},
        _E.YIELD: {_S.RUNNING: _S.YIELDING},
        _E.STOP: {
            _S.WAITING: _S.ENDED,
            _S.HELD: _S.ENDED,
            _S.RUNNING: _S.STOPPING,
            _S.YIELDING: _S.STOPPING,
        },
        # What is told to stop does not run again.
        _E.GO_ON: {_S.RUNNING: _S.WAITING, _S.YIELDING: _S.WAITING},
        _E.HOLD: {_S.RUNNING: _S.HELD, _S.YIELDING: _S.HELD},
        _E.LINE_UP: {_S.HELD: _S.WAITING},
        # What has ended may still be left: the replica keeps its output until the client has it.
        _E.LEAVE: dict.fromkeys((*_LIVES, _S.ENDED), _S.LEFT),
        _E.END: dict.fromkeys(_LIVES, _S.ENDED),
    }
)
"""Event to state before to state after. An event that is missing for a state changes nothing there."""


def state_after(state: ChoiceState, event: ChoiceEvent) -> ChoiceState | None:
    """Return the next state; None where the event does not apply."""
    return TRANSITIONS[event].get(state)
