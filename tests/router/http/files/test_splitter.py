"""Splitting of a stream of bytes into lines."""

from __future__ import annotations

import random

import pytest

from cluster.errors import InvalidRequestError
from router.http.files.splitter import LineSplitter

FILES = [
    (b"", []),
    (b"a", [1]),
    (b"a\nb\n", [1, 2]),
    (b"\n\r\n \t\na\n\n\nb\n\nc", [4, 7, 9]),
    (b"\xef\xbb\xbf\na\n", [2]),
    (b"\n\n", [1]),
    (b"a\r\nb\r\n", [1, 2]),
    (b"x" * 300 + b"\n" + b"y" * 500, [1, 2]),
]


@pytest.mark.parametrize(("data", "numbers"), FILES)
def test_the_lines_are_the_file_however_it_is_cut(data: bytes, numbers: list[int]) -> None:
    rng = random.Random(7)
    for _ in range(50):
        splitter = LineSplitter(1_000)
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        found = [line for piece in pieces for line in splitter.feed(piece)] + list(splitter.end())
        assert [number for number, _ in found] == numbers
        assert b"".join(line for _, line in found) == data


@pytest.mark.parametrize("data", [b"x" * 101, b"a\n" + b"x" * 101 + b"\n", b"a\n" + b"\n" * 100])
def test_a_line_that_is_too_long_is_named(data: bytes) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"at most 100 bytes a line \(jobs.max_item_bytes\), line \d+ has more"
    ):
        [*(splitter := LineSplitter(100)).feed(data), *splitter.end()]
