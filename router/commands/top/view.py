"""What the user has chosen to see, and how keys change it. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace


class Page(enum.Enum):
    """What is shown below the pools; the value is its key."""

    REPLICAS = "1"
    LINE = "2"
    DECISIONS = "3"


SORTS = ("name", "state", "running", "kv", "step", "itl", "tokens", "up")
"""Orders of replicas. All but the first two begin with the largest value."""
HELP = (
    ("tab, right", "next pool"),
    ("back tab, left", "pool before"),
    ("1", "replicas, and the head of the line"),
    ("2", "the line: who waits and runs, by class and tenant"),
    ("3", "the autoscaler's decisions"),
    ("up, down, j, k", "choose a row; page up, page down, home, end go further"),
    ("enter", "look into the replica, tenant or decision that is chosen"),
    ("escape", "back"),
    ("s, S", "sort replicas by the next column, or by the one before"),
    ("r", "turn the order round"),
    ("p, space", "pause, and go on"),
    ("?, h", "this help"),
    ("q, Ctrl-C", "end"),
)


@dataclass(frozen=True, slots=True)
class View:
    """State of the display that its user chose."""

    pool: str = ""
    """Name of the pool; empty for the first one."""
    page: Page = Page.REPLICAS
    sort: str = SORTS[0]
    turned: bool = False
    """Whether the order is turned round."""
    chosen: str = ""
    """Key of the row that is chosen; empty for the first one."""
    inside: bool = False
    """Whether the chosen row is looked into."""
    paused: bool = False
    help: bool = False


@dataclass(frozen=True, slots=True)
class Lists:
    """The lists that are on the screen now."""

    pools: Sequence[str] = ()
    rows: Sequence[str] = ()
    """Keys of the rows of the page, in the order shown."""
    page_rows: int = 10
    """Rows that one page up or down goes."""


_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1}
_FAR = {"home": -(1 << 30), "g": -(1 << 30), "end": 1 << 30, "G": 1 << 30}
_POOLS = {"tab": 1, "right": 1, "back tab": -1, "left": -1}
_PAGES = {each.value: each for each in Page}


def press(view: View, key: str, shown: Lists) -> View | None:
    """Return the view after a key; None where the key ends the display. Keys without a meaning change nothing."""
    if key in ("q", "Q"):
        return None
    if key in ("?", "h"):
        return replace(view, help=not view.help)
    if key == "escape":
        return replace(view, help=False) if view.help else replace(view, inside=False)
    if view.help:
        return view
    if key in _POOLS:
        return _to_pool(view, _POOLS[key], shown)
    if key in _PAGES:
        return replace(view, page=_PAGES[key], chosen="", inside=False)
    if key in ("s", "S"):
        return replace(view, sort=_next(SORTS, view.sort, 1 if key == "s" else -1), turned=False)
    if key == "r":
        return replace(view, turned=not view.turned)
    if key in ("p", "space"):
        return replace(view, paused=not view.paused)
    return _to_row(view, key, shown)


def chosen_row(view: View, rows: Sequence[str]) -> int | None:
    """Return the number of the row that is chosen; the first where the chosen one is gone. None without rows."""
    if not rows:
        return None
    return rows.index(view.chosen) if view.chosen in rows else 0


def _to_pool(view: View, step: int, shown: Lists) -> View:
    if not shown.pools:
        return view
    now = view.pool if view.pool in shown.pools else shown.pools[0]
    return replace(view, pool=_next(shown.pools, now, step), chosen="", inside=False)


def _to_row(view: View, key: str, shown: Lists) -> View:
    row = chosen_row(view, shown.rows)
    if row is None:
        return view
    if key == "enter":
        return replace(view, chosen=shown.rows[row], inside=True)
    steps = {**_MOVES, **_FAR, "page up": -shown.page_rows, "page down": shown.page_rows}
    if key not in steps:
        return view
    return replace(view, chosen=shown.rows[min(len(shown.rows) - 1, max(0, row + steps[key]))])


def _next(all_: Sequence[str], now: str, step: int) -> str:
    return all_[(all_.index(now) + step) % len(all_)]
