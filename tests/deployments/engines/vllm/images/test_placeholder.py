"""The part of a text that a model's processor replaces by an image."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from deployments.engines.vllm.images.placeholder import find, text_of

APART = [7]
START, PAD, END, OTHER = 1, 2, 3, 4


def encode(text: str) -> list[int]:
    return {"a": APART, "<start><pad><end>": [START, PAD, END], "<pad>": [PAD], "words": [5, 6]}[text]


class Replacing:
    """A processor that puts tokens in the place of others."""

    def __init__(self, target: Sequence[int], tokens: Sequence[int], after: Sequence[int] | None = None) -> None:
        self.target, self.tokens = list(target), list(tokens)
        self.prompts: list[list[int]] = []
        self._later = list(tokens if after is None else after)

    def __call__(self, prompt: list[int]) -> tuple[list[int], int, int]:
        size = len(self.target)
        place = next((start for start in range(len(prompt)) if prompt[start : start + size] == self.target), None)
        if place is None:
            raise ValueError("no placeholder")
        tokens = self._later if self.prompts else self.tokens
        self.prompts.append(prompt)
        return prompt[:place] + tokens + prompt[place + size :], place, len(tokens)


@pytest.mark.parametrize(
    ("text", "target", "ids"),
    [
        ("<pad>", [PAD], (PAD,)),
        ("<start><pad><end>", [PAD], (PAD,)),
        ("<start><pad><end>", [START, PAD, END], (START, PAD, END)),
        ("<start><pad><end>", [PAD, END], (PAD, END)),
    ],
)
def test_what_is_replaced_is_found(text: str, target: list[int], ids: tuple[int, ...]) -> None:
    found = find(text, encode, Replacing(target, [OTHER, PAD, PAD, PAD, OTHER]))
    assert (text, ids, tuple(APART)) == (found.text, found.ids, found.apart)
    assert [*APART, *ids, *APART, *ids, *APART] == found.prompt(2)


def test_a_processor_that_replaces_something_else_is_not_used() -> None:
    with pytest.raises(ValueError, match="no placeholder"):
        find("words", encode, Replacing([PAD], [OTHER]))

    def elsewhere(prompt: list[int]) -> tuple[list[int], int, int]:
        return [OTHER, OTHER, *prompt], 0, 2

    with pytest.raises(ValueError, match="another part of the prompt than '<pad>'"):
        find("<pad>", encode, elsewhere)


def test_a_processor_whose_tokens_depend_on_the_rest_is_not_used() -> None:
    with pytest.raises(ValueError, match="makes other tokens of an image without the rest"):
        find("<start><pad><end>", encode, Replacing([PAD], [OTHER, PAD], after=[OTHER]))


class Named:
    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        assert "image" == modality
        return "<image>"


class Counting(Named):
    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        return f"<|image_{i}|>"


class Nameless(Named):
    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        return None


def test_models_that_count_or_name_nothing_take_no_images() -> None:
    assert "<image>" == text_of(Named)
    with pytest.raises(ValueError, match=r"counts the images of a prompt: '<\|image_1\|>', '<\|image_2\|>'"):
        text_of(Counting)
    with pytest.raises(ValueError, match="names no text"):
        text_of(Nameless)
