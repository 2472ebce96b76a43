"""Files of strangers: sizes from their heads, pixels as models see them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from cluster.image_files import MAX_PIXELS, ImageFileError, pixels_of, size_of
from tests.support.pictures import BLUE, RED, huge, picture, written

WHITE = (255, 255, 255)


def turned(orientation: int, kind: str = "JPEG", size: tuple[int, int] = (40, 20)) -> bytes:
    """Return an image with a red upper half, as a camera writes it that was held in some way."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return picture(*size, kind=kind, exif=exif.tobytes())


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
    content = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(content)) + b"eXIf" + content + struct.pack(">I", zlib.crc32(b"eXIf" + content))
    file = plain[:-12] + chunk + plain[-12:]
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
