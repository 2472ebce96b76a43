"""Conversations that are too long for their model, without their oldest turns."""

from __future__ import annotations

import bisect
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from router.http.responses.conversation import Placed
from router.http.responses.items import Item, images_of, said

_LASTING = ("system", "developer")
"""Roles whose messages always stay."""
_ANSWER_DIVISOR = 4
"""What the context is divided by for an answer without a limit."""
_LONGEST_TOKEN = 16
"""Bytes of text for each token of the context beyond which a conversation is cut before its tokens are counted."""
_IMAGE_BYTES = 4_096
"""Bytes of text that have about as many tokens as an image."""
_TEMPLATE_TOKENS, _MESSAGE_TOKENS = 2_048, 64
"""More than templates add to a conversation, and to each message."""
_FULL = 0.9
"""Part of the room for other turns than the last, from which no more are tried."""
_MOST_TRIES = 5
"""Most counts beside those of the whole conversation and of the shortest one."""


def room(context: int, max_tokens: int) -> int:
    """Return how many tokens of a context a conversation may take, beside an answer of `max_tokens` (0: no limit)."""
    return context - (max_tokens or context // _ANSWER_DIVISOR)


def surely_fits(request_bytes: int, messages: int, most: int) -> bool:
    """Return whether a request need not be counted. A token has a byte of it, or is one that the template adds."""
    return request_bytes + _TEMPLATE_TOKENS + _MESSAGE_TOKENS * messages <= most


@dataclass(frozen=True, slots=True)
class ConversationBounds:
    """Bounds beyond which a conversation certainly is too long."""

    context: int
    """Tokens of the model's context."""
    items: int
    text_bytes: int
    bytes: int
    """Bytes of texts and images together."""
    images: int
    """Most images that the model takes; 0 where it takes none, and the whole conversation is to be refused."""


def bounded(items: Sequence[Placed], bounds: ConversationBounds) -> Sequence[Placed]:
    """Return a conversation without the oldest turns that are certainly too many; the shortest one if all are."""
    texts = [_text_bytes(item) for _, item in items]
    images = [images_of(item) for _, item in items]
    whole = [text + sum(map(len, shown)) for text, shown in zip(texts, images, strict=True)]
    measured = [
        (_from_end(texts), min(bounds.text_bytes, _LONGEST_TOKEN * bounds.context)),
        (_from_end(whole), bounds.bytes),
        (_from_end([len(shown) for shown in images]), bounds.images or math.inf),
    ]

    def fits(start: int) -> bool:
        return all(sums[start] <= most for sums, most in measured)

    if len(items) <= bounds.items and fits(0):
        return items
    starts = beginnings(items)
    start = next((each for each in starts if len(items) - each < bounds.items and fits(each)), None)
    return from_beginning(items, start if start is not None else starts[-1]) if starts else items


async def shortened(
    items: Sequence[Placed], most: int, count: Callable[[Sequence[Placed]], Awaitable[int]]
) -> Sequence[Placed]:
    """Return a conversation without its oldest turns, so that the rest has at most `most` tokens.

    To count a long conversation takes seconds, so only a few beginnings are tried, chosen by the bytes of what goes. If
    even the shortest conversation is too long, it is returned.

    Args:
        items: the conversation.
        most: room for it.
        count: returns the tokens of a conversation.
    """
    tokens = await count(items)
    starts = beginnings(items)
    if tokens <= most or not starts:
        return items
    kept = from_beginning(items, starts[-1])
    least = await count(kept)
    from_end = _from_end([_size(item) for _, item in items])
    # The first beginning that may fit, and the last that may not; their bytes and tokens.
    low, high = 0, len(starts) - 1
    (longer, too_many), (shorter, few) = (from_end[0], tokens), (from_end[starts[-1]], least)
    for number in range(_MOST_TRIES):
        if low >= high or few > most or few - least >= _FULL * (most - least):
            break
        bound = shorter + (longer - shorter) * (most - few) / max(1, too_many - few)
        guess = bisect.bisect_left(starts, True, low, high - 1, key=lambda start: from_end[start] <= bound)
        # Where texts are of different kinds the guess may stay at one end.
        place = guess if number % 2 == 0 else (low + high) // 2
        part = from_beginning(items, starts[place])
        found = await count(part)
        if found <= most:
            kept, high, shorter, few = part, place, from_end[starts[place]], found
        else:
            low, longer, too_many = place + 1, from_end[starts[place]], found
    return kept


def beginnings(items: Sequence[Placed]) -> list[int]:
    """Return where a conversation may begin, beside its first item, so that no call is parted from its output.

    These are the user's messages. Behind the last of them, where an agent works through many calls, also what comes
    after the output of a call.
    """
    last_user, called_at, call_of = _last_user(items), dict[str, int](), dict[int, int]()
    for index, (_, item) in enumerate(items):
        if item["type"] == "function_call":
            called_at[item["call_id"]] = index
        elif _is_output(item) and item["call_id"] in called_at:
            call_of[index] = called_at[item["call_id"]]
    found: list[int] = []
    # The earliest call whose output comes from here on.
    earliest = len(items)
    for index in range(len(items) - 1, 0, -1):
        item, before = items[index][1], items[index - 1][1]
        earliest = min(earliest, call_of.get(index, earliest))
        is_step = index > last_user and _is_output(before) and not _is_output(item)
        if (_is_user(item) or is_step) and earliest >= index:
            found.append(index)
    return found[::-1]


def from_beginning(items: Sequence[Placed], start: int) -> list[Placed]:
    """Return a conversation from one of its `beginnings` on, with instructions and the user's last message."""
    last_user = _last_user(items)
    before = [
        each
        for index, each in enumerate(items[:start])
        if index == last_user or (each[1]["type"] == "message" and each[1]["role"] in _LASTING)
    ]
    return [*before, *items[start:]]


def _size(item: Item) -> int:
    """Return the bytes of an item's text, and of one that has about as many tokens as its images."""
    return _text_bytes(item) + _IMAGE_BYTES * len(images_of(item))


def _text_bytes(item: Item) -> int:
    text = item["name"] + item["arguments"] if item["type"] == "function_call" else said(item)
    return len(text.encode(errors="surrogatepass"))


def _from_end(sizes: Sequence[int]) -> list[int]:
    """Return the sum from each place to the end."""
    return list(accumulate(reversed(sizes), initial=0))[::-1]


def _is_output(item: Item) -> bool:
    return bool(item["type"] == "function_call_output")


def _is_user(item: Item) -> bool:
    return bool(item["type"] == "message" and item["role"] == "user")


def _last_user(items: Sequence[Placed]) -> int:
    """Return the place of the user's last message; -1 where there is none."""
    return next((index for index in range(len(items) - 1, -1, -1) if _is_user(items[index][1])), -1)
