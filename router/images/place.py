"""Images in prompts: the tokens that engines make of them, in place of the ids that stand for one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from cluster.errors import InvalidRequestError
from cluster.models import PromptImage
from router.tokens.template import FIELD
from router.validation import Image

_TOKEN_BYTES = array("I").itemsize


@dataclass(frozen=True, slots=True)
class Encoded:
    """Prompt in tokens."""

    ids: Sequence[int]
    images: tuple[PromptImage, ...] = ()

    def names(self) -> Sequence[int]:
        """Return numbers that are the same for two prompts as far as these have the same beginning.

        All images of one size have the same tokens, so those of an image are numbers drawn from its content.
        """
        if not self.images:
            return self.ids
        names = array("I", self.ids)
        for image in self.images:
            digest = blake2b(image.data, digest_size=16).digest()
            drawn = array("I", digest * (image.length * _TOKEN_BYTES // len(digest) + 1))
            names[image.offset : image.offset + image.length] = drawn[: image.length]
        return names


def with_images(
    ids: Sequence[int], image_ids: Sequence[int], images: Sequence[Image], tokens: Sequence[Sequence[int]]
) -> Encoded:
    """Return a prompt with the tokens of its images.

    Args:
        ids: token ids of the prompt, with `image_ids` at the place of each image.
        image_ids: ids that stand for an image.
        images: the images, in order.
        tokens: those of each image.

    Raises:
        InvalidRequestError: there are more or fewer places than images.
    """
    places = list(_places(ids, image_ids))
    if len(places) != len(images):
        raise InvalidRequestError.of(
            FIELD, f"has {len(images)} images, and the model's chat template makes {len(places)} places for them"
        )
    expanded: list[int] = []
    found: list[PromptImage] = []
    done = 0
    for place, image, own in zip(places, images, tokens, strict=True):
        expanded += ids[done:place]
        found.append(PromptImage(image.data, len(expanded), len(own)))
        expanded += own
        done = place + len(image_ids)
    expanded += ids[done:]
    return Encoded(expanded, tuple(found))


def _places(ids: Sequence[int], image_ids: Sequence[int]) -> Iterator[int]:
    """Yield the positions of the ids that stand for an image."""
    wanted, size, place = list(image_ids), len(image_ids), 0
    try:
        while True:
            place = ids.index(wanted[0], place)
            if list(ids[place : place + size]) == wanted:
                yield place
                place += size
            else:
                place += 1
    except ValueError:
        return
