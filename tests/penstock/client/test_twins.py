"""The two clients are one: the same methods, arguments and words, with and without `async`."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from penstock import AsyncClient, AsyncStream, Client, Stream

_WORDS = (
    (r"\basync (for|with|def)\b", r"\1"),
    (r"\bAsync(Client|Stream|Iterator)\b", r"\1"),
    (r"\baclose\b", "close"),
    (r"\banext\b", "next"),
    (r"\baiter\b", "iter"),
)


def plain(text: str) -> str:
    """Return text without what only asyncio needs, and without the places of its line ends."""
    for pattern, word in _WORDS:
        text = re.sub(pattern, word, text)
    return " ".join(text.split())


def public(kind: type) -> dict[str, Any]:
    return {
        plain(name): member
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    }


PAIRS = [(AsyncClient, Client), (AsyncStream, Stream)]
METHODS = [(name, a, b) for a, b in PAIRS for name in public(b)]


@pytest.mark.parametrize(("asyncio", "threads"), PAIRS)
def test_twins_have_the_same_methods(asyncio: type, threads: type) -> None:
    assert public(asyncio).keys() == public(threads).keys()


@pytest.mark.parametrize(
    ("name", "asyncio", "threads"), METHODS, ids=[f"{b.__name__}.{name}" for name, _, b in METHODS]
)
def test_twins_take_and_return_the_same(name: str, asyncio: type, threads: type) -> None:
    first, second = public(asyncio)[name], public(threads)[name]
    if isinstance(second, property):
        first, second = first.fget, second.fget
    assert plain(str(inspect.signature(first))) == plain(str(inspect.signature(second)))


@pytest.mark.parametrize(
    ("name", "asyncio", "threads"), METHODS, ids=[f"{b.__name__}.{name}" for name, _, b in METHODS]
)
def test_twins_say_the_same_and_each_says_it_itself(name: str, asyncio: type, threads: type) -> None:
    """An editor shows the words that stand in the source of the method; a pointer to the other class shows nothing."""
    first, second = public(asyncio)[name].__doc__, public(threads)[name].__doc__
    assert second
    assert "Async" not in second
    assert plain(first) == plain(second)


def test_the_clients_are_made_with_the_same_words() -> None:
    first, second = AsyncClient.__init__, Client.__init__
    assert inspect.signature(first) == inspect.signature(second)
    assert plain(first.__doc__ or "") == plain(second.__doc__ or "")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_every_argument_of_a_method_is_described(kind: type) -> None:
    """Where there are several; a single `timeout` is in the sentence."""
    for name, method in public(kind).items():
        names = [each for each in inspect.signature(method).parameters if each != "self"]
        if len(names) > 2:
            assert [each for each in names if f"{each}: " not in method.__doc__] == [], name
