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


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_number_that_json_lacks_is_refused_wherever_it_is(number: str) -> None:
    """Some fields come back as they were sent, and clients could not read the answer."""
    with pytest.raises(BodyError, match=rf"has (the number )?{number}, which"):
        read_json(f'{{"user": [{{"a": {number}}}]}}'.encode())


def test_every_other_number_is_read_as_it_is_written() -> None:
    most = 10**4_000
    data = f'{{"whole": {most}, "large": 1.7e308, "small": 1e-999, "text": "NaN"}}'
    assert {"whole": most, "large": 1.7e308, "small": 0.0, "text": "NaN"} == read_json(data.encode())


@pytest.mark.parametrize("text", ["plain", "😀", "한글", "퟿", ""])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_all_other_text_is_read(text: str, ascii_only: bool) -> None:
    assert {"text": text} == read_json(json.dumps({"text": text}, ensure_ascii=ascii_only).encode())
