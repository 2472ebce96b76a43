"""Images of a prompt, as a router sends them."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.models import PromptImage
from penstock.internal.v1 import replica_pb2 as pb


def images_from_wire(wire: Iterable[pb.PromptImage]) -> tuple[PromptImage, ...]:
    return tuple(PromptImage(each.data, each.offset, each.length) for each in wire)


def places_problem(images: Iterable[PromptImage], prompt_tokens: int) -> str | None:
    """Return what is wrong with the places of images in a prompt; None where nothing is."""
    free = 0
    for number, image in enumerate(images):
        end = image.offset + image.length
        if image.length < 1:
            return f"images[{number}].length: must be at least 1, got {image.length}"
        if image.offset < free:
            return f"images[{number}].offset: must be at least {free}, the end of the image before, got {image.offset}"
        if end > prompt_tokens:
            return f"images[{number}]: ends at token {end}, and the prompt has {prompt_tokens}"
        free = end
    return None
