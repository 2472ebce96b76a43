"""Small image files."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

from PIL import Image

Color = tuple[int, int, int]
RED: Color = (255, 0, 0)
BLUE: Color = (0, 0, 255)


def picture(width: int = 64, height: int = 64, color: Color = RED, kind: str = "PNG", **options: Any) -> bytes:
    """Return the file of an image that is half of one color and half white, so that it has an upper side."""
    image = Image.new("RGB", (width, height), (255, 255, 255))
    image.paste(color, (0, 0, width, -(-height // 2)))
    return written(image, kind, **options)


def written(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def huge(width: int, height: int) -> bytes:
    """Return a PNG file of a few bytes whose head claims a size, and whose pixels are missing."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )
