"""The text that stands for an image in a prompt, and the tokens of it that a model's processor replaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_IMAGE = "image"
_APART = "a"
"""Text between placeholders. Without it some processors join the ends of two images."""

Replace = Callable[[list[int]], tuple[list[int], int, int]]
"""Lets the processor put one image into a prompt: returns its tokens, and the place and number of the image's."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """What stands for an image."""

    text: str
    ids: tuple[int, ...]
    """Tokens in the text that the processor replaces."""
    apart: tuple[int, ...]
    """Tokens that keep two of them apart."""

    def prompt(self, images: int) -> list[int]:
        """Return a prompt of nothing but images."""
        return [*self.apart, *(token for _ in range(images) for token in (*self.ids, *self.apart))]


def text_of(model: Any) -> str:
    """Return the text by which a model class of vLLM stands for an image.

    Raises:
        ValueError: it has none, or a new one for each image.
    """
    first, second = (model.get_placeholder_str(_IMAGE, number) for number in (1, 2))
    if not first:
        raise ValueError("the model class names no text that stands for an image")
    if first != second:
        raise ValueError(f"the model class counts the images of a prompt: {first!r}, {second!r}")
    return str(first)


def find(text: str, encode: Callable[[str], Sequence[int]], replace: Replace) -> Placeholder:
    """Find the tokens that the processor replaces.

    Raises:
        ValueError: they are not in the text.
    """
    ids, apart = list(encode(text)), tuple(encode(_APART))
    found, start, length = replace([*apart, *ids, *apart])
    before, after = found[:start][len(apart) :], found[start + length :][: -len(apart) or None]
    ends = len(ids) - len(after)
    if before != ids[: len(before)] or after != ids[ends:] or len(before) >= ends:
        raise ValueError(f"the model's processor replaces another part of the prompt than {text!r}")
    placeholder = Placeholder(text, tuple(ids[len(before) : ends]), apart)
    alone, place, size = replace(placeholder.prompt(1))
    if alone[place : place + size] != found[start : start + length]:
        raise ValueError(f"the model's processor makes other tokens of an image without the rest of {text!r}")
    return placeholder
