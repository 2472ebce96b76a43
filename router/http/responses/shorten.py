"""Conversations that are too long for their model, without their oldest turns."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate

from router.http.responses.conversation import Placed
from router.http.responses.items import Item

_LASTING = ("system", "developer")
"""Roles whose messages always stay."""
_ROOM = 4
"""Part of the context that stays free for an answer without a limit, as a divisor."""


def room(context: int, max_tokens: int) -> int:
    """Return how many tokens of a context a conversation may take, beside an answer of `max_tokens` (0: no limit)."""
    return context - (max_tokens or context // _ROOM)


async def shortened(
    items: Sequence[Placed], tokens: int, most: int, count: Callable[[Sequence[Placed]], Awaitable[int]]
) -> Sequence[Placed]:
    """Return a conversation without its oldest turns, so that the rest has at most `most` tokens.

    How much has to go is estimated from characters, because counting a long conversation takes seconds. So it may be a
    turn more than needed. Where nothing is short enough, the shortest is returned.

    Args:
        items: the conversation.
        tokens: its length.
        most: room for it.
        count: return the tokens of a part of it.
    """
    sizes = list(accumulate((len(json.dumps(item)) for _, item in reversed(items)), initial=0))[::-1]
    size, kept = sizes[0], items
    starts = beginnings(items)
    while tokens > most and starts:
        bound = size * most / tokens
        start = next((each for each in starts if sizes[each] <= bound), starts[-1])
        starts = [each for each in starts if each > start]
        size, kept = sizes[start], from_beginning(items, start)
        tokens = await count(kept)
    return kept


def beginnings(items: Sequence[Placed]) -> list[int]:
    """Return where a conversation may begin, beside its first item.

    These are the user's messages. Behind the last of them, where an agent works through many calls, also what comes
    after a call's output, if no call waits for its own.
    """
    found: list[int] = []
    open_calls, last_user = set[str](), _last_user(items)
    for index, (_, item) in enumerate(items):
        is_output = item["type"] == "function_call_output"
        after_output = index > 0 and items[index - 1][1]["type"] == "function_call_output"
        if index and (_is_user(item) or (index > last_user and after_output and not is_output and not open_calls)):
            found.append(index)
        if item["type"] == "function_call":
            open_calls.add(item["call_id"])
        elif is_output:
            open_calls.discard(item["call_id"])
    return found


def from_beginning(items: Sequence[Placed], start: int) -> list[Placed]:
    """Return a conversation from one of its `beginnings` on, with instructions and the user's last message."""
    last_user = _last_user(items)
    before = [
        each
        for index, each in enumerate(items[:start])
        if index == last_user or (each[1]["type"] == "message" and each[1]["role"] in _LASTING)
    ]
    return [*before, *items[start:]]


def _is_user(item: Item) -> bool:
    return bool(item["type"] == "message" and item["role"] == "user")


def _last_user(items: Sequence[Placed]) -> int:
    """Return the place of the user's last message; -1 where there is none."""
    return next((index for index in range(len(items) - 1, -1, -1) if _is_user(items[index][1])), -1)
