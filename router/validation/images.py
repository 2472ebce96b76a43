"""Checks of images by the beginnings of their files. Nothing is decoded: engines do that."""

from __future__ import annotations

import io
import warnings

import PIL.Image

from penstock.v1 import types_pb2
from router.validation.values import Image
from router.validation.violations import Violations, shown

MAX_IMAGES = 64
MAX_PIXELS = 64_000_000
"""Most pixels of an image. A few kilobytes may claim to be gigabytes of picture."""
MAX_BYTES = 32 << 20
"""Most bytes of all images of a conversation, which travel to a replica in one message of 64 MiB at most."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_BEGINNING = 8


def check_image(found: Violations, where: str, wire: types_pb2.Image) -> Image:
    """Check an image and convert it. One that is wrong has no size."""
    nothing = Image(wire.data, 0, 0)
    if not wire.data:
        found.add(f"{where}.data", "must be the content of an image file, got 0 bytes")
        return nothing
    try:
        with warnings.catch_warnings():
            # Pillow warns of less than we allow.
            warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)
            with PIL.Image.open(io.BytesIO(wire.data), formats=FORMATS) as opened:
                width, height = opened.size
    except PIL.Image.DecompressionBombError:
        found.add(f"{where}.data", f"must be an image of at most {MAX_PIXELS} pixels, and has more")
        return nothing
    except Exception:  # noqa: BLE001 - readers of broken files raise exceptions of many kinds
        begins = shown(wire.data[:_BEGINNING])
        found.add(f"{where}.data", f"must be a PNG, JPEG, WebP or GIF file, got {len(wire.data)} bytes from {begins}")
        return nothing
    if not 0 < width * height <= MAX_PIXELS:
        size = f"{width} x {height} = {width * height}"
        found.add(f"{where}.data", f"must be an image of 1 to {MAX_PIXELS} pixels, got {size}")
        return nothing
    return Image(wire.data, width, height)
