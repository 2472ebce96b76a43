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
"""Longest time between two pictures while the router is silent: the time of the silence is shown."""


def show(terminal: Terminal, poller: Poller, pool: str) -> None:
    """Show the display until a key ends it."""
    view: View | None = View(pool)
    with terminal.taken():
        poller.start()
        try:
            shown, silent_since = poller.looked, time.monotonic()
            while view is not None:
                if not view.paused:
                    shown = poller.looked
                if not shown.trouble:
                    silent_since = time.monotonic()
                else:
                    shown = replace(shown, silent_s=max(shown.silent_s, time.monotonic() - silent_since))
                width, height = terminal.size
                terminal.draw(picture(shown, view, width, height))
                view = _pressed(terminal.keys(_AGAIN_S if shown.trouble else 60.0), view, shown, height)
                _wish(poller, view, shown)
        finally:
            poller.stop()


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
