"""Lines that are not UTF-8: what they look like, and where."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile

import pytest

from penstock import BatchFileError, Message, read_batch
from penstock.batch.encoding import ESCAPED

BODY = {"model": "demo", "messages": [{"role": "user", "content": "Où est le café, 日本?"}]}
REQUEST = {"method": "POST", "url": "/v1/chat/completions", "body": BODY}
LINES = "".join(json.dumps({"custom_id": f"q{n}", **REQUEST}, ensure_ascii=False) + "\n" for n in range(3))


def lines(data: bytes) -> list[str]:
    """Read a file as `penstock jobs submit` does."""
    with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors=ESCAPED) as file:
        return list(file)


def zipped(text: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("requests.jsonl", text)
    return data.getvalue()


@pytest.mark.parametrize("mark", ["utf-8", "utf-8-sig"])
def test_a_byte_order_mark_is_none(mark: str) -> None:
    batch = read_batch(lines(LINES.encode(mark) + LINES.replace('"q', '"r').encode(mark)))

    assert ["q0", "q1", "q2", "r0", "r1", "r2"] == [item.custom_id for item in batch.items]
    assert [Message("user", "Où est le café, 日本?")] == batch.items[0].prompt


def test_a_file_of_nothing_but_a_mark_has_no_requests() -> None:
    with pytest.raises(BatchFileError, match=r"^line 1: the file has no requests$"):
        read_batch(lines(b"\xef\xbb\xbf\n"))


@pytest.mark.parametrize(
    ("data", "guess"),
    [
        (LINES.encode("utf-16"), "UTF-16: convert it to UTF-8"),
        (LINES.encode("utf-16-le"), "UTF-16: convert it to UTF-8"),
        (LINES.encode("utf-16-be"), "UTF-16: convert it to UTF-8"),
        (LINES.encode("utf-32"), "UTF-16: convert it to UTF-8"),
        (gzip.compress(LINES.encode()), "a gzip file: unpack it"),
        (bz2.compress(LINES.encode()), "a bzip2 file: unpack it"),
        (lzma.compress(LINES.encode()), "an xz file: unpack it"),
        (zipped(LINES), "a zip file: unpack it"),
        (b"\x28\xb5\x2f\xfd\x04\x58", "a Zstandard file: unpack it"),
        (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    ],
    # Archives have their time in them, and workers of one run need the same names.
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_kind_of_file_is_named(data: bytes, guess: str) -> None:
    with pytest.raises(BatchFileError, match=rf"^line 1: is not UTF-8 text; it looks like {guess}$"):
        read_batch(lines(data))


@pytest.mark.parametrize(
    ("data", "byte", "guess"),
    [
        ("é".encode("latin-1"), "e9", "Latin-1 or Windows-1252"),
        ("\u201c".encode("cp1252"), "93", "Latin-1 or Windows-1252"),
        ("日本".encode("shift-jis"), "93", "another encoding"),
        ("Привет".encode("cp1251"), "cf", "another encoding"),
    ],
)
def test_a_bad_byte_is_named_with_its_line_and_place(data: bytes, byte: str, guess: str) -> None:
    first, second, third = LINES.encode().splitlines(keepends=True)
    column = second.decode().index("café") + 1
    bad = second.replace("café".encode(), data)

    with pytest.raises(BatchFileError) as caught:
        read_batch(lines(first + bad + third))

    assert f"line 2: is not UTF-8: byte 0x{byte} at column {column}; the file may be {guess}" == str(caught.value)
