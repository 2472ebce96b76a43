"""Files of strangers: sizes from their heads, pixels as models see them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from cluster.image_files import MAX_DECODED, MAX_PARTS, MAX_PIXELS, MAX_TABLES, ImageFileError, pixels_of, size_of
from tests.support.pictures import BLUE, RED, huge, picture, written

WHITE = (255, 255, 255)


def turned(orientation: int, kind: str = "JPEG", size: tuple[int, int] = (40, 20)) -> bytes:
    """Return an image with a red upper half, as a camera writes it that was held in some way."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return picture(*size, kind=kind, exif=exif.tobytes())


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def segment(marker: int, content: bytes) -> bytes:
    """Return a segment of a JPEG file."""
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def before_picture(more: bytes, kind: str) -> bytes:
    """Return a file with something before its picture."""
    file = picture(40, 20, kind=kind)
    at = {"PNG": file.find(b"IDAT") - 4, "JPEG": 2, "GIF": file.find(b",")}[kind]
    return file[:at] + more + file[at:]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_size_and_pixels_agree(kind: str) -> None:
    file = picture(31, 17, kind=kind)
    assert (31, 17) == size_of(file) == pixels_of(file).size
    assert "RGB" == pixels_of(file).mode


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(
    ("orientation", "size", "red"),
    [(1, (40, 20), (20, 2)), (3, (40, 20), (20, 17)), (6, (20, 40), (17, 20)), (8, (20, 40), (2, 20))],
)
def test_a_photo_is_upright(kind: str, orientation: int, size: tuple[int, int], red: tuple[int, int]) -> None:
    file = turned(orientation, kind)
    assert size == size_of(file)
    image = pixels_of(file)
    assert size == image.size
    pixel: Any = image.getpixel(red)
    assert pixel[0] > 200 > 100 > pixel[1]
    assert not image.info
    assert not image.getexif()


def test_what_the_end_of_a_file_says_turns_nothing() -> None:
    """Else the size would take a whole decoding. Both ways must agree."""
    plain, exif = picture(40, 20), Image.Exif()
    exif[0x0112] = 6
    file = plain[:-12] + chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")) + plain[-12:]
    assert (40, 20) == size_of(file) == pixels_of(file).size


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode: str) -> None:
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 0)).convert(mode)
    options = {"transparency": image.getpixel((0, 0))} if mode == "P" else {}
    assert WHITE == pixels_of(written(image, **options)).getpixel((1, 1))


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_of_a_moving_picture_the_first_one_counts(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in (RED, BLUE)]
    file = written(frames[0], kind, save_all=True, append_images=frames[1:])
    pixel: Any = pixels_of(file).getpixel((4, 4))
    assert pixel[0] > 200 > 100 > pixel[2]


@pytest.mark.parametrize("data", [b"", b"nothing", b"GIF89a", b"\x89PNG\r\n\x1a\n", picture()[:20]])
def test_what_is_no_image_is_told(data: bytes) -> None:
    for read in (size_of, pixels_of):
        with pytest.raises(ImageFileError, match=f"the {len(data)} bytes are no PNG, JPEG, WebP or GIF file"):
            read(data)


def test_other_formats_are_not_read() -> None:
    for kind in ("BMP", "TIFF", "PPM", "ICO"):
        with pytest.raises(ImageFileError, match="no PNG, JPEG, WebP or GIF"):
            pixels_of(picture(16, 16, kind=kind))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_file_that_is_cut_is_broken(kind: str) -> None:
    image = Image.effect_noise((200, 200), 90).convert("RGB")
    file = written(image, kind)
    file = file[: len(file) // 2]
    if kind != "WEBP":
        assert (200, 200) == size_of(file)
    with pytest.raises(ImageFileError, match="broken"):
        pixels_of(file)


@pytest.mark.parametrize("size", [(8_001, 8_000), (12_000, 12_000), (1 << 20, 1 << 20)])
def test_an_image_that_claims_to_be_huge_is_not_decoded(size: tuple[int, int]) -> None:
    for read in (size_of, pixels_of):
        with pytest.raises(ImageFileError, match=f"{MAX_PIXELS} pixels"):
            read(huge(*size))


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("PNG", chunk(b"abCd", b"")),
        ("PNG", chunk(b"tEXt", b"a\0b")),
        ("JPEG", segment(0xFE, b"")),
        ("JPEG", segment(0xE1, b"Exif\0\0a")),
        ("JPEG", b"\xff\x00"),
        ("GIF", b"!\xfe\x01a\0"),
        ("GIF", b"!\xff\0"),
    ],
)
def test_a_file_of_many_small_parts_is_refused(kind: str, part: bytes) -> None:
    """Millions of them fit in a request, and each costs a step in Python: a router would stand still for seconds."""
    assert (40, 20) == size_of(before_picture(100 * part, kind))
    for read in (size_of, pixels_of):
        with pytest.raises(ImageFileError, match=f"at most {MAX_PARTS} parts around its picture"):
            read(before_picture(MAX_PARTS * part, kind))


def test_tables_before_a_picture_are_bounded() -> None:
    table = segment(0xDB, bytes(65) * 1_000)
    assert (40, 20) == size_of(before_picture(segment(0xDB, bytes(65)), "JPEG"))
    for file in (before_picture(2 * table, "JPEG"), before_picture(chunk(b"PLTE", bytes(MAX_TABLES)), "PNG")):
        with pytest.raises(ImageFileError, match=f"at most {MAX_TABLES} bytes of tables"):
            size_of(file)


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_texts_around_a_picture_are_not_unpacked(kind: bytes) -> None:
    """A few kilobytes become megabytes. Pillow unpacks them, and refuses a file for one that is too large."""
    packed = zlib.compress(bytes(2 << 20))
    text = b"a\0\1\0\0\0" if kind == b"iTXt" else b"a\0\0"
    file = before_picture(chunk(kind, text + packed), "PNG")
    assert (40, 20) == size_of(file) == pixels_of(file).size


@pytest.mark.parametrize("name", ["Raw profile type exif", "XML:com.adobe.xmp"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_photo_is_upright_where_a_text_says_how_it_was_held(name: str, packed: bool) -> None:
    exif, info = Image.Exif(), PngInfo()
    exif[0x0112] = 6
    if name.startswith("Raw"):
        info.add_text(name, f"\nexif\n{len(exif.tobytes()):8d}\n{exif.tobytes().hex()}", zip=packed)
    else:
        info.add_itxt(name, '<rdf tiff:Orientation="6"/>', zip=packed)
    file = picture(40, 20, pnginfo=info)
    assert (20, 40) == size_of(file) == pixels_of(file).size
    bomb = PngInfo()
    bomb.add_text(name, "0" * (8 << 20), zip=True)
    assert (40, 20) == size_of(picture(40, 20, pnginfo=bomb))


def test_of_texts_of_one_name_one_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of them fit in a file, and each may become a megabyte."""
    unpacked, unpack = [], zlib.decompressobj

    def counted() -> Any:
        unpacked.append(1)
        return unpack()

    monkeypatch.setattr("cluster.image_files.zlib.decompressobj", counted)
    raw = chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(b"no"))
    xmp = chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(b"no"))
    assert (40, 20) == size_of(before_picture(20 * raw + 20 * xmp, "PNG"))
    assert len(unpacked) <= 2


def test_exif_is_read_for_its_orientation_alone() -> None:
    """Other tags may each say that they are as long as all of it."""
    tags = [struct.pack("<HHII", tag, 7, 60_000, 8) for tag in range(1, 256)]
    tags.append(struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0))
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(tags)
    file = before_picture(segment(0xE1, exif + bytes(100)), "JPEG")
    assert (20, 40) == size_of(file) == pixels_of(file).size
    for end in (11, 13, 30):
        assert (40, 20) == size_of(before_picture(segment(0xE1, exif[:end]), "JPEG"))


def test_passes_over_a_picture_are_bounded() -> None:
    """A hundred bytes are one more pass over all pixels. Megabytes of them would be decoded for hours."""
    file = written(Image.new("L", (2_000, 1_000)), "JPEG", progressive=True)
    at = file.rindex(b"\xff\xda")
    passes = MAX_DECODED // 2_000_000
    assert (2_000, 1_000) == pixels_of(file[:at] + 20 * file[at:-2] + file[-2:]).size
    many = file[:at] + passes * file[at:-2] + file[-2:]
    assert (2_000, 1_000) == size_of(many)
    with pytest.raises(ImageFileError, match=f"at most {MAX_DECODED} pixels in all of its scans together"):
        pixels_of(many)


def test_empty_chunks_of_a_picture_are_bounded() -> None:
    with pytest.raises(ImageFileError, match="parts around its picture"):
        pixels_of(before_picture(chunk(b"IDAT", b"") * 65_536, "PNG"))
