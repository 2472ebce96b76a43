"""Image files from strangers: their sizes and their pixels, as a model sees them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_PIXELS = 64_000_000
"""Most pixels of an image. A few kilobytes may claim to be gigabytes of picture."""
_ORIENTATION = 0x0112
"""EXIF tag with the way in which a camera was held."""
_TURNED = frozenset({5, 6, 7, 8})
"""Orientations that exchange width and height."""


class ImageFileError(ValueError):
    """A file that is no image, or one that is too large."""


def size_of(data: bytes) -> tuple[int, int]:
    """Return width and height of an image, upright. Reads the file's head alone.

    Raises:
        ImageFileError: it is no image of a known format, or has too many pixels.
    """
    with _opened(data) as image:
        width, height = image.size
        return (height, width) if _orientation(image) in _TURNED else (width, height)


def pixels_of(data: bytes) -> Image:
    """Decode the first picture of a file: upright, in RGB, on white where it is transparent.

    Raises:
        ImageFileError: for the reasons of `size_of`, or the file is broken.
    """
    with _opened(data) as image:
        # Before the pixels, as in `size_of`: they may bring another one from the end of a file.
        orientation = _orientation(image)
        try:
            image.load()
            found = _upright(_rgb(image), orientation)
        except Exception as error:
            # Readers of broken files raise exceptions of many kinds.
            raise ImageFileError(f"the {image.format} file is broken: {error}") from error
    # A model's own code would turn it once more.
    found.info.clear()
    return found


def _opened(data: bytes) -> Image:
    from PIL.Image import DecompressionBombError, DecompressionBombWarning
    from PIL.Image import open as open_image

    try:
        image = open_image(io.BytesIO(data), formats=FORMATS)
    except (DecompressionBombError, DecompressionBombWarning) as error:
        raise ImageFileError(f"an image may have at most {MAX_PIXELS} pixels, and this one has more") from error
    except Exception as error:
        # As above.
        raise ImageFileError(f"the {len(data)} bytes are no PNG, JPEG, WebP or GIF file, or a broken one") from error
    pixels = image.width * image.height
    if not 0 < pixels <= MAX_PIXELS:
        raise ImageFileError(
            f"an image must have 1 to {MAX_PIXELS} pixels, this one has {image.width} x {image.height} = {pixels}"
        )
    return image


def _orientation(image: Image) -> int:
    from PIL.Image import Image as Base

    try:
        # That of PNG files decodes the whole file to find one at its end.
        return int(Base.getexif(image).get(_ORIENTATION, 1))
    except Exception:  # noqa: BLE001 - what can't be read turns nothing, as in vLLM
        return 1


def _rgb(image: Image) -> Image:
    """Convert to RGB in the way of vLLM's loader, on which models' results depend."""
    from PIL.Image import new

    if image.mode == "RGB" or not (image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info):
        return image.convert("RGB")
    layer = image.convert("RGBA")
    white = new("RGB", image.size, (255, 255, 255))
    white.paste(layer, mask=layer.getchannel("A"))
    return white


def _upright(image: Image, orientation: int) -> Image:
    from PIL.Image import Transpose

    ways: dict[int, Any] = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(ways[orientation]) if orientation in ways else image
