"""Tokens that engines make of images, asked for before a request waits in line."""

from __future__ import annotations

import logging
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from cluster.errors import InvalidRequestError, LinkError, NoReplicaError
from cluster.models import ModelInfo
from router.dispatch.pool import Pool
from router.tokens.fair_turns import FairTurns
from router.tokens.template import FIELD
from router.validation import ChatPrompt

_LOG = logging.getLogger(__name__)
_LATER_S = 1.0
REMEMBERED_TOKENS = 1 << 20
"""Tokens that a router remembers, of 4 bytes each. Applications send images of the same few sizes."""
_OVERHEAD = 128
"""Tokens that what else is kept of an image takes as much room as."""
ASKING = 4
"""Most questions of a router to the replicas of a pool at the same time. Each answers one after another."""

Sizes = tuple[tuple[int, int], ...]
"""Width and height of each image of a prompt."""


class ImageTokens:
    """Tokens of images, remembered by tokenizer and sizes, which alone decide them."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, Sizes], tuple[array[int], ...]] = OrderedDict()
        self._held = 0
        """Number of remembered tokens."""
        self._turns: dict[str, FairTurns] = {}
        """Turns of the tenants by pool."""

    async def of(self, pool: Pool, info: ModelInfo, prompt: ChatPrompt, tenant: str) -> Sequence[Sequence[int]]:
        """Return the tokens of each image of a conversation. Tenants take turns with sizes that are not known yet: an
        answer may take seconds of a replica, and quotas apply only later.

        Raises:
            InvalidRequestError: the model can't take these images.
            NoReplicaError: no replica with this tokenizer can be asked now.
        """
        sizes = tuple((image.width, image.height) for _field, image in prompt.images())
        key = info.tokenizer_digest, sizes
        if (known := self._remembered(key)) is not None:
            return known
        async with self._turns.setdefault(pool.name, FairTurns(ASKING)).turn(tenant):
            # Another request has often asked meanwhile.
            if (known := self._remembered(key)) is not None:
                return known
            found = await self._ask(pool, info, sizes)
        if key not in self._known:
            self._known[key] = found
            self._held += _size(found)
        while self._held > REMEMBERED_TOKENS and self._known:
            _key, forgotten = self._known.popitem(last=False)
            self._held -= _size(forgotten)
        return found

    def _remembered(self, key: tuple[str, Sizes]) -> tuple[array[int], ...] | None:
        if (known := self._known.get(key)) is not None:
            self._known.move_to_end(key)
        return known

    async def _ask(self, pool: Pool, info: ModelInfo, sizes: Sizes) -> tuple[array[int], ...]:
        for replica_id in pool.replicas.reading(info.tokenizer_digest):
            if (link := pool.replicas.link(replica_id)) is None:
                continue
            try:
                found, problem = await link.expand_images(sizes)
            except LinkError as error:
                _LOG.info("images.not_expanded", extra={"replica": replica_id, "error": str(error)})
                continue
            if problem:
                raise InvalidRequestError.of(f"{FIELD}.messages", f"must have images that the model takes: {problem}")
            if len(found) == len(sizes):
                return found
        raise NoReplicaError(f"no replica of {pool.name!r} can say how many tokens images have now", _LATER_S)


def check_images(info: ModelInfo, prompt: ChatPrompt) -> None:
    """Check that a model takes the images of a conversation.

    Raises:
        InvalidRequestError: it takes none, or fewer.
    """
    fields = [field for field, _image in prompt.images()]
    most = info.capabilities.max_images
    if fields and not most:
        raise InvalidRequestError.of(f"{FIELD}.{fields[0]}", "must be unset: this model takes no images")
    if len(fields) > most:
        raise InvalidRequestError.of(
            f"{FIELD}.messages", f"must have at most {most} images with this model, got {len(fields)}"
        )


def _size(tokens: tuple[array[int], ...]) -> int:
    return sum(_OVERHEAD + len(each) for each in tokens)
