"""The conversation that a request goes on with, from what is stored."""

from __future__ import annotations

import json
from collections.abc import Sequence

from cluster.responses.contract import ResponseName, ResponseStore
from penstock.values.objects import BodyError, shown
from router.http.responses.body import AskedResponse
from router.http.responses.items import Item, named, reference, response_of
from router.http.responses.stored import StoredResult

Placed = tuple[str, Item]
"""An item, and the field of the body that it comes from."""


async def conversation(
    asked: AskedResponse, store: ResponseStore, tenant: str, response_id: str, max_bytes: int | None
) -> list[Placed]:
    """Return all items up to the answer: those of the previous response, its output, and the new ones. `max_bytes`:
    length of all of them as JSON; None for no bound.

    Raises:
        BodyError: something that the request refers to is not stored, or all of it is too long.
    """
    found: list[Placed] = []
    if asked.previous:
        previous = await _result(store, tenant, asked.previous, "previous_response_id")
        found = [("previous_response_id", item) for item in (*previous.items, *previous.response["output"])]
    known = {str(item["id"]): item for _, item in found}
    own: list[Item] = []
    for index, item in enumerate(asked.items):
        where, name = f"input[{index}]", reference(item)
        own.append(item if name is None else known.get(name) or await _stored_item(store, tenant, name, where))
    found += [(f"input[{index}]", item) for index, item in enumerate(named(own, response_id))]
    if max_bytes is not None and (size := len(json.dumps([i for _, i in found], ensure_ascii=False))) > max_bytes:
        raise BodyError(found[0][0], f"the whole conversation must have at most {max_bytes:,} bytes, got {size:,}")
    return found


async def _stored_item(store: ResponseStore, tenant: str, name: str, where: str) -> Item:
    response_id = response_of(name)
    if response_id is not None:
        result = await _result(store, tenant, response_id, f"{where}.id")
        for item in (*result.response["output"], *result.items):
            if item.get("id") == name:
                return dict(item)
    raise BodyError(f"{where}.id", f"must be the id of a stored item, got {shown(name)}")


async def _result(store: ResponseStore, tenant: str, response_id: str, where: str) -> StoredResult:
    record = await store.get(ResponseName(tenant, response_id))
    if record is None:
        raise BodyError(where, f"must name a stored response, got {shown(response_id)}")
    if not record.ended:
        raise BodyError(where, f"must name a response that has ended; {shown(response_id)} runs")
    return StoredResult.unpack(record.result)


def page(items: Sequence[Item], *, limit: int, after: str, newest_first: bool) -> tuple[list[Item], bool]:
    """Return a part of a list, and whether there is more of it.

    Raises:
        BodyError: no item has the id `after`.
    """
    ordered = list(reversed(items)) if newest_first else list(items)
    if after:
        at = next((index for index, item in enumerate(ordered) if item.get("id") == after), None)
        if at is None:
            raise BodyError("after", f"must be the id of an input item, got {shown(after)}")
        ordered = ordered[at + 1 :]
    return ordered[:limit], len(ordered) > limit
