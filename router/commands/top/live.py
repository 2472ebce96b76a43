"""The loop of the live display: keys and looks change it, and it is drawn again."""

from __future__ import annotations

import time
from dataclasses import replace

from router.commands.top.looked import Looked, pool_of
from router.commands.top.picture import picture, shown_lists
from router.commands.top.poll import Poller, Wish
from router.commands.top.terminal import Terminal
from router.commands.top.view import Page, View, press

_AGAIN_S = 1.0
"""Longest time between two pictures: they show for how long the router has been silent."""
_SILENT_S = 2.0
"""Time after the next look is due from which a router counts as silent, before the call has failed."""


def show(terminal: Terminal, poller: Poller, pool: str) -> None:
    """Show the display until a key ends it."""
    view: View | None = View(pool)
    with terminal.taken():
        poller.start()
        try:
            shown = poller.looked
            while view is not None:
                if not view.paused:
                    shown = aged(poller.looked, time.monotonic() - poller.answered_at, poller.period_s)
                width, height = terminal.size
                terminal.draw(picture(shown, view, width, height))
                view = _pressed(terminal.keys(_AGAIN_S), view, shown, height)
                _wish(poller, view, shown)
        finally:
            poller.stop()


def aged(looked: Looked, silent_s: float, period_s: float) -> Looked:
    """Return what was seen, with the time for which there was no answer.

    Args:
        looked: what was seen last.
        silent_s: seconds since the last answer.
        period_s: seconds between two looks.
    """
    if looked.trouble or silent_s < period_s + _SILENT_S:
        return replace(looked, silent_s=silent_s)
    return replace(looked, silent_s=silent_s, trouble="the router does not answer")


def _pressed(keys: list[str], view: View | None, shown: Looked, height: int) -> View | None:
    for key in keys:
        if view is None:
            break
        view = press(view, key, shown_lists(shown, view, height))
    return view


def _wish(poller: Poller, view: View | None, shown: Looked) -> None:
    """Tell the poller what the page needs."""
    pool = pool_of(shown, view) if view is not None else None
    wanted = pool is not None and view is not None and view.page is Page.DECISIONS
    wish = Wish(decisions_of=pool.name if wanted and pool is not None else "")
    if wish != poller.wish:
        poller.wish = wish
        poller.hurry()
