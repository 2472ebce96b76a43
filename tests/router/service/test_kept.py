"""What is read out of a kept result."""

from __future__ import annotations

import pytest
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types

from router.service.kept import pack_result, replay


@pytest.mark.parametrize(("have", "text"), [(0, "Hello world"), (1, "llo world"), (3, "rld")])
def test_text_that_the_end_released_is_not_lost(have: int, text: str) -> None:
    choice = api.Choice(text="Hello world", token_ids=[1, 2, 3], finish_reason=types.FINISH_REASON_LENGTH)
    kept = pack_result(api.GenerateResponse(choices=[choice]), {0: [(1, 2), (3, 8), (3, 11)]})

    delta, finished = replay(kept, (have,))

    assert (text, have) == (delta.delta.text, delta.delta.offset)
    assert finished.HasField("finished")
