"""Tokens of images take the places that the chat template made."""

from __future__ import annotations

import pytest

from cluster.errors import InvalidRequestError
from router.images.place import with_images
from router.validation import Image

MARK = (7, 8)
RED, BLUE = Image(b"red", 1, 1), Image(b"blue", 1, 1)


def test_each_place_gets_the_tokens_of_its_image() -> None:
    encoded = with_images([1, 7, 8, 2, 7, 8, 3], MARK, [RED, BLUE], [[9, 9, 9], [9]])

    assert [1, 9, 9, 9, 2, 9, 3] == list(encoded.ids)
    assert [(b"red", 1, 3), (b"blue", 5, 1)] == [(each.data, each.offset, each.length) for each in encoded.images]


def test_a_part_of_a_mark_is_no_place() -> None:
    encoded = with_images([7, 7, 8, 7], MARK, [RED], [[9]])
    assert [7, 9, 7] == list(encoded.ids)


@pytest.mark.parametrize(("ids", "places"), [([1, 2], 0), ([7, 8, 7, 8], 2)])
def test_other_numbers_of_places_and_images_are_refused(ids: list[int], places: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"has 1 images, and the model's chat template makes {places} places"):
        with_images(ids, MARK, [RED], [[9]])


def test_prompts_share_names_up_to_the_first_image_that_differs() -> None:
    ids, tokens = [1, 7, 8, 2, 7, 8, 3], [[9] * 20, [9] * 5]
    one = list(with_images(ids, MARK, [RED, RED], tokens).names())
    same = list(with_images(ids, MARK, [RED, RED], tokens).names())
    other = list(with_images(ids, MARK, [RED, BLUE], tokens).names())

    assert one == same
    assert len(one) == len(other) == 28
    assert one[:22] == other[:22]
    assert all(a != b for a, b in zip(one[22:27], other[22:27], strict=True))
    assert [3] == one[27:] == other[27:]


def test_names_of_a_prompt_without_images_are_its_ids() -> None:
    ids = [1, 2, 3]
    assert with_images(ids, MARK, [], []).names() == ids
