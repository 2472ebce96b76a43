"""Keys, and what they change."""

from __future__ import annotations

import pytest

from router.commands.top.keys import names_of
from router.commands.top.view import HELP, SORTS, Lists, Page, View, chosen_row, press

SHOWN = Lists(("a", "b", "c"), ("r0", "r1", "r2", "r3"), 2)


def after(*keys: str, view: View | None = None) -> View:
    found = view or View()
    for key in keys:
        pressed = press(found, key, SHOWN)
        assert pressed is not None
        found = pressed
    return found


def test_the_bytes_of_a_terminal_are_keys() -> None:
    assert ["up", "down", "q", "page up", "escape", "enter", "tab", "?"] == names_of(b"\x1b[A\x1bOBq\x1b[5~\x1b\r\t?")


def test_unknown_sequences_and_letters_beyond_ascii_are_no_keys() -> None:
    assert ["a"] == names_of(b"\x1b[200~\x1b[1;5Ca\xc3\xa4")


def test_q_ends() -> None:
    assert press(View(), "q", SHOWN) is None
    assert press(View(help=True), "q", SHOWN) is None


def test_tab_goes_round_the_pools() -> None:
    assert ["b", "c", "a", "c"] == [
        after("tab").pool, after("tab", "tab").pool, after("tab", "tab", "tab").pool, after("back tab").pool,
    ]  # fmt: skip


def test_rows_are_chosen_and_the_ends_hold() -> None:
    assert "r1" == after("down").chosen
    assert "r0" == after("down", "up", "up").chosen
    assert "r3" == after("page down", "page down", "down").chosen
    assert ("r3", "r0") == (after("end").chosen, after("end", "home").chosen)


def test_a_chosen_row_that_is_gone_is_the_first_one() -> None:
    assert (0, 2, None) == (
        chosen_row(View(chosen="gone"), SHOWN.rows), chosen_row(View(chosen="r2"), SHOWN.rows), chosen_row(View(), ()),
    )  # fmt: skip


def test_enter_looks_into_a_row_and_escape_comes_back() -> None:
    inside = after("down", "enter")
    assert ("r1", True) == (inside.chosen, inside.inside)
    assert not after("escape", view=inside).inside


def test_enter_without_rows_does_nothing() -> None:
    assert View() == press(View(), "enter", Lists())


def test_pages_sorts_pause_and_help() -> None:
    assert [Page.LINE, Page.DECISIONS, Page.REPLICAS] == [after(key).page for key in "231"]
    assert (SORTS[1], SORTS[-1], SORTS[0]) == (after("s").sort, after("S").sort, after("s", "S").sort)
    assert after("r").turned
    assert (True, False) == (after("p").paused, after("p", "space").paused)
    assert (True, False, False) == (after("?").help, after("?", "?").help, after("?", "escape").help)


@pytest.mark.parametrize("key", ["x", "1;5C", "Z"])
def test_keys_without_a_meaning_change_nothing(key: str) -> None:
    assert View(chosen="r1") == press(View(chosen="r1"), key, SHOWN)


def test_every_key_of_the_help_does_something() -> None:
    named = {word for keys, _ in HELP for word in keys.split(", ")} - {"Ctrl-C"}
    start = View(chosen="r1", pool="b")
    for key in named - {"escape", "up", "k", "home", "page up"}:
        assert start != press(start, key, SHOWN), key
