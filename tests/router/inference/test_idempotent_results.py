"""What is read out of a kept result."""

from __future__ import annotations

import pytest

from cluster.errors import InvalidRequestError
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.inference.idempotency import pack_result, replay


@pytest.mark.parametrize(("have", "text"), [(0, "Hello world"), (1, "llo world"), (3, "rld")])
def test_text_that_the_end_released_is_not_lost(have: int, text: str) -> None:
    choice = api.Choice(text="Hello world", token_ids=[1, 2, 3], finish_reason=types.FINISH_REASON_LENGTH)
    kept = pack_result(api.GenerateResponse(choices=[choice]), {0: [(1, 2), (3, 8), (3, 11)]})

    delta, finished = replay(kept, (have,))

    assert (text, have) == (delta.delta.text, delta.delta.offset)
    assert finished.HasField("finished")


def test_an_offset_that_is_no_end_is_refused_before_anything_is_sent() -> None:
    choices = [api.Choice(index=index, text="ab", token_ids=[1, 2]) for index in range(2)]
    kept = pack_result(api.GenerateResponse(choices=choices), {0: [(2, 2)], 1: [(2, 2)]})

    with pytest.raises(InvalidRequestError, match="got 1"):
        next(replay(kept, (0, 1)))
