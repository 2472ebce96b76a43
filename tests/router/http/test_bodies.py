"""Bodies that are no request, and how cheap ones are told from those that need a closer look."""

from __future__ import annotations

import json

import pytest

from penstock.values.objects import BodyError
from router.http.bodies import read_json

HALF = json.dumps({"text": "\ud800"}, ensure_ascii=False)


@pytest.mark.parametrize(
    "data",
    [
        b'{"text": "\\ud800"}',
        b'{"text": "\\uDC00 and more"}',
        HALF.encode("utf-8", "surrogatepass"),
        HALF.encode("utf-16-le", "surrogatepass"),
        HALF.encode("utf-32-be", "surrogatepass"),
    ],
)
def test_half_of_a_surrogate_pair_is_found_in_every_encoding(data: bytes) -> None:
    with pytest.raises(BodyError, match="half of a surrogate pair"):
        read_json(data)


@pytest.mark.parametrize("text", ["plain", "😀", "한글", "퟿", ""])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_all_other_text_is_read(text: str, ascii_only: bool) -> None:
    assert {"text": text} == read_json(json.dumps({"text": text}, ensure_ascii=ascii_only).encode())
