"""Images for the simulated engine: it sees that they differ, and nothing else."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.errors import EngineRequestError
from cluster.image_files import MAX_IMAGES, ImageFileError, pixels_of
from cluster.models import GenerationSpec, PromptImage
from deployments.engines.sim.text import Vocabulary
from penstock.models import ModelTask

_TEXTS = ("<image>", "<|image_pad|>")
"""Texts that stand for an image in the templates of real models. Where none is a token, the last is several."""
_WORD = "image"
"""Part of those texts without which their tokens could stand for anything."""
_TILE = 28
"""Pixels of a side of the square that becomes one token."""
_AROUND = (("", ""), (" ", " "), ("\n", "\n"), ("a", "a"), ("1", "1"), (".", "."), ("<|", "|>"))
"""Texts beside which the tokens of an image's text must stay the same."""


@dataclass(frozen=True, slots=True)
class SimPlaceholder:
    """What stands for an image in a prompt: nothing where the tokenizer has no stable tokens for it."""

    text: str = ""
    ids: tuple[int, ...] = ()

    def expand(self, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        """Return the tokens of images.

        Raises:
            EngineRequestError: the model can't take them.
        """
        if not self.ids:
            raise EngineRequestError("the model takes no images: its tokenizer has no tokens that could stand for one")
        if len(sizes) > MAX_IMAGES:
            raise EngineRequestError(f"a prompt may have at most {MAX_IMAGES} images, got {len(sizes)}")
        return [self.ids[:1] * max(1, -(-width // _TILE) * -(-height // _TILE)) for width, height in sizes]

    async def read(self, spec: GenerationSpec) -> None:
        """Decode a prompt's images, in a thread.

        Raises:
            EngineRequestError: a file is broken, or the prompt has not the tokens of its images.
        """
        tokens = self.expand(
            [await asyncio.to_thread(_size_of, number, each) for number, each in enumerate(spec.images)]
        )
        for number, (image, expected) in enumerate(zip(spec.images, tokens, strict=True)):
            found = tuple(spec.prompt_token_ids[image.offset : image.offset + image.length])
            if found != expected:
                raise EngineRequestError(
                    f"images[{number}]: the prompt has {len(found)} other tokens than the {len(expected)} of the image"
                )


NO_PLACEHOLDER = SimPlaceholder()


def placeholder_of(vocabulary: Vocabulary, task: ModelTask) -> SimPlaceholder:
    """Find a text whose tokens stay the same, whatever stands beside it, for a model that generates."""
    if task is not ModelTask.GENERATE:
        return NO_PLACEHOLDER
    found = [SimPlaceholder(text, _stable(vocabulary, text)) for text in _TEXTS]
    single = next((each for each in found if len(vocabulary.encode(each.text)) == len(each.ids) == 1), None)
    return single or (found[-1] if found[-1].ids else NO_PLACEHOLDER)


def _size_of(number: int, image: PromptImage) -> tuple[int, int]:
    try:
        return pixels_of(image.data).size
    except ImageFileError as error:
        raise EngineRequestError(f"images[{number}]: {error}") from error


def distinct_prompt(spec: GenerationSpec) -> Sequence[int]:
    """Return the prompt with the images' contents in the places of their tokens."""
    if not spec.images:
        return spec.prompt_token_ids
    prompt = list(spec.prompt_token_ids)
    for image in spec.images:
        # Less than 64 bits with a sign.
        content = int.from_bytes(hashlib.blake2b(image.data, digest_size=7).digest())
        prompt[image.offset : image.offset + image.length] = [content] * image.length
    return prompt


def _stable(vocabulary: Vocabulary, text: str) -> tuple[int, ...]:
    """Return the longest run of a text's tokens that stays the same beside other text; empty where there is none."""
    alone = vocabulary.encode(text)
    others = [vocabulary.encode(f"{before}{text}{after}") for before, after in _AROUND]
    runs = (alone[start : start + size] for size in range(len(alone), 0, -1) for start in range(len(alone) - size + 1))
    return tuple(
        next(
            (run for run in runs if all(_count(ids, run) == 1 for ids in others) and _names(vocabulary, run, text)), ()
        )
    )


def _count(ids: Sequence[int], run: Sequence[int]) -> int:
    return sum(ids[start : start + len(run)] == run for start in range(len(ids) - len(run) + 1))


def _names(vocabulary: Vocabulary, run: Sequence[int], text: str) -> bool:
    """Return whether tokens stand for an image in writing too. Those of unknown text do not."""
    shown = vocabulary.show(run)
    # Signs at the ends may join with those of other texts.
    return shown == text or (_WORD in shown and len(run) > 1 and shown in text.strip("<|>"))
