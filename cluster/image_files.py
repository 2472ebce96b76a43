"""Image files from strangers: their sizes and their pixels, as a model sees them."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_IMAGES = 64
"""Most images of a conversation, whatever an engine allows: vLLM sets no limit by default."""
MAX_PIXELS = 64_000_000
"""Most pixels of an image. A few kilobytes may claim to be gigabytes of picture."""
MAX_DECODED = 32 * MAX_PIXELS
"""Most pixels of all passes over an image. A pass takes a hundred bytes of a JPEG file, and as long as a picture."""
MAX_PARTS = 4_096
"""Most parts of a file before its picture: segments, chunks or blocks."""
MAX_TABLES = 65_536
"""Most bytes before a picture that decoding it needs."""
_MAX_CHUNKS = 65_536
"""Most chunks of a PNG picture; of those of 4 KiB that encoders write, this is more than a request may have."""
_HEAD_BYTES = 4_096
"""Bytes of a picture that tell its size."""
_MAX_TEXT = 1 << 20
"""Most bytes that a packed text may become."""
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
    lean = _lean(data)
    with _opened(lean.head + bytes(lean.picture[:_HEAD_BYTES]) if lean else data, len(data)) as image:
        width, height = image.size
        return (height, width) if _orientation(lean or _of_webp(image)) in _TURNED else (width, height)


def pixels_of(data: bytes) -> Image:
    """Decode the first picture of a file: upright, in RGB, on white where it is transparent.

    Raises:
        ImageFileError: for the reasons of `size_of`, or the file is broken.
    """
    lean = _lean(data)
    with _opened(lean.whole() if lean else data, len(data)) as image:
        orientation = _orientation(lean or _of_webp(image))
        if lean and image.format == "JPEG" and (scans := data.count(_SCAN)) * image.width * image.height > MAX_DECODED:
            raise ImageFileError(
                f"a JPEG file may have at most {MAX_DECODED} pixels in all of its scans together, this one has {scans} "
                f"of {image.width} x {image.height}"
            )
        try:
            image.load()
            found = _upright(_rgb(image), orientation)
        except Exception as error:
            # Readers of broken files raise exceptions of many kinds.
            raise ImageFileError(f"the {image.format} file is broken: {error}") from error
    # A model's own code would turn it once more.
    found.info.clear()
    return found


def _opened(content: bytes, size: int) -> Image:
    """Open a file. `size`: that of the one that came."""
    from PIL.Image import DecompressionBombError, DecompressionBombWarning
    from PIL.Image import open as open_image

    try:
        image = open_image(io.BytesIO(content), formats=FORMATS)
    except (DecompressionBombError, DecompressionBombWarning) as error:
        raise ImageFileError(f"an image may have at most {MAX_PIXELS} pixels, and this one has more") from error
    except Exception as error:
        # As above.
        raise ImageFileError(f"the {size} bytes are no PNG, JPEG, WebP or GIF file, or a broken one") from error
    pixels = image.width * image.height
    if not 0 < pixels <= MAX_PIXELS:
        raise ImageFileError(
            f"an image must have 1 to {MAX_PIXELS} pixels, this one has {image.width} x {image.height} = {pixels}"
        )
    return image


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


# --- what is around a picture -----------------------------------------------------------------------------------------
# Pillow reads all of it in Python when it opens a file: a few megabytes of small parts take seconds, and packed texts
# become a thousand times as large. So it gets the picture without them.


@dataclass(frozen=True, slots=True)
class _Lean:
    """A file without what its picture doesn't need."""

    head: bytes = b""
    picture: memoryview | bytes = b""
    end: bytes = b""
    exif: bytes = b""
    xmp: bytes = b""

    def whole(self) -> bytes:
        return b"".join((self.head, self.picture, self.end))


def _lean(data: bytes) -> _Lean | None:
    """Return a file without what its picture doesn't need; None for one of another format.

    Raises:
        ImageFileError: there is too much before its picture.
    """
    if data.startswith(_PNG):
        return _lean_png(data)
    if data.startswith(b"\xff\xd8\xff"):
        return _lean_jpeg(data)
    return _lean_gif(data) if data.startswith((b"GIF87a", b"GIF89a")) else None


def _of_webp(image: Image) -> _Lean:
    # All of its parts are read in C, and none is unpacked.
    return _Lean(exif=image.info.get("exif", b""), xmp=image.info.get("xmp", b""))


def _parts(most: int = MAX_PARTS) -> Iterator[None]:
    """Count the parts of a file.

    Raises:
        ImageFileError: there are too many.
    """
    for _ in range(most):
        yield
    raise ImageFileError(f"an image file may have at most {most} parts around its picture, and this one has more")


def _check_tables(size: int) -> None:
    if size > MAX_TABLES:
        raise ImageFileError(f"an image file may have at most {MAX_TABLES} bytes of tables, and this one has more")


_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_NEEDED = (b"IHDR", b"PLTE", b"tRNS")
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_RAW_EXIF = b"Raw profile type exif\0"
_XMP_TEXT = b"XML:com.adobe.xmp\0"
_PNG_TEXTS, _PNG_NAMES = (b"tEXt", b"zTXt", b"iTXt"), (_RAW_EXIF, _XMP_TEXT)


def _lean_png(data: bytes) -> _Lean:
    kept, at, exif, texts = bytearray(_PNG), len(_PNG), b"", dict[bytes, tuple[bytes, bytes]]()
    for _ in _parts():
        size, kind = _chunk(data, at)
        end = at + 12 + size
        content = slice(at + 8, at + 8 + size)
        if kind in (b"", b"IDAT", b"IEND"):
            break
        if kind in _PNG_NEEDED:
            _check_tables(len(kept) + size)
            kept += data[at:end]
        elif kind == b"eXIf":
            exif = data[content]
        elif kind in _PNG_TEXTS and (name := next((n for n in _PNG_NAMES if data.startswith(n, at + 8)), None)):
            texts[name] = kind, data[content]
        at = end
    start = at
    for _ in _parts(_MAX_CHUNKS):
        size, kind = _chunk(data, at)
        if kind != b"IDAT":
            break
        at += 12 + size
    # Thousands of texts with one name would take as long as each that is unpacked.
    exif = exif or _raw_exif(_png_text(*texts.get(_RAW_EXIF, (b"", b""))))
    xmp = _png_text(*texts.get(_XMP_TEXT, (b"", b"")))
    return _Lean(bytes(kept), memoryview(data)[start:at], _PNG_END if at <= len(data) else b"", exif, xmp)


def _chunk(data: bytes, at: int) -> tuple[int, bytes]:
    """Return the size of a chunk's content and its kind, which is empty at the end of a file."""
    return struct.unpack_from(">I4s", data, at) if at + 8 <= len(data) else (0, b"")


def _png_text(kind: bytes, content: bytes) -> bytes:
    """Return the text of a chunk; empty where it is broken, or unpacks to too much."""
    _name, _, rest = content.partition(b"\0")
    if kind in (b"", b"tEXt"):
        return rest
    packed, rest = kind == b"zTXt" or rest[:1] == b"\1", rest[1 if kind == b"zTXt" else 2 :]
    if kind == b"iTXt":
        rest = rest.split(b"\0", 2)[-1]
    if not packed:
        return rest
    try:
        return zlib.decompressobj().decompress(rest, _MAX_TEXT)
    except zlib.error:
        return b""


def _raw_exif(text: bytes) -> bytes:
    """Return EXIF that ImageMagick has written in hexadecimal, after three lines."""
    try:
        return bytes.fromhex(text.split(b"\n", 3)[-1].decode("ascii"))
    except ValueError:
        return b""


_SCAN = b"\xff\xda"
_NO_FILL = re.compile(rb"[^\xff]")
_XMP_SEGMENT = b"http://ns.adobe.com/xap/1.0/\0"
_COLORS = {0xE0: (b"JFIF\0", 14), 0xEE: (b"Adobe", 12)}
"""Begin and length of the application segments that say what the colors are, by marker."""


def _lean_jpeg(data: bytes) -> _Lean:
    kept, at, exif, xmp = bytearray(b"\xff\xd8"), 2, bytearray(), b""
    for _ in _parts():
        at = data.find(b"\xff", at)
        found = _NO_FILL.search(data, at) if at >= 0 else None
        if found is None or found.end() + 2 > len(data):
            return _Lean(bytes(kept), exif=bytes(exif), xmp=xmp)
        marker, start = data[found.start()], found.end()
        if marker == 0xDA:
            at = start - 2
            break
        if marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD9:
            at = start
            continue
        at = start + max(2, int.from_bytes(data[start : start + 2]))
        content = slice(start + 2, at)
        if marker in _COLORS and data.startswith(_COLORS[marker][0], start + 2):
            colors = data[content][: _COLORS[marker][1]]
            kept += bytes((0xFF, marker)) + struct.pack(">H", len(colors) + 2) + colors
        elif marker == 0xE1 and data.startswith(b"Exif\0\0", start + 2):
            exif += data[content][6:]
        elif marker == 0xE1 and data.startswith(_XMP_SEGMENT, start + 2):
            xmp = data[content]
        elif not 0xE0 <= marker <= 0xEF and marker != 0xFE:
            kept += data[start - 2 : at]
        _check_tables(len(kept))
    return _Lean(bytes(kept), memoryview(data)[at:], exif=bytes(exif), xmp=xmp)


def _lean_gif(data: bytes) -> _Lean:
    at = 13 + (3 << (data[10] & 7) + 1 if len(data) > 10 and data[10] & 128 else 0)
    head, control, block = data[:at], b"", at
    for _ in _parts():
        if block == at and data[at : at + 1] != b"!":
            break
        # A block is a label and lists of bytes, until an empty one.
        block += 2 if block == at else 0
        size = data[block] if block < len(data) else 0
        block += 1 + size
        if not size:
            control, at = data[at:block] if data[at + 1 : at + 2] == b"\xf9" else control, block
    return _Lean(head + control, memoryview(data)[at:])


# --- how a camera was held --------------------------------------------------------------------------------------------

_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_VALUES = {3: "H", 4: "I"}
"""Formats of whole numbers, by their types in EXIF."""


def _orientation(lean: _Lean) -> int:
    """Return the orientation that Pillow finds. What can't be read turns nothing, as in vLLM."""
    if (found := _exif_orientation(lean.exif)) is not None:
        return found
    named = _XMP_ORIENTATION.search(lean.xmp)
    return int(named[1]) if named else 1


def _exif_orientation(exif: bytes) -> int | None:
    for _ in range(2):
        exif = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    try:
        if order is None:
            return None
        (directory,) = struct.unpack_from(f"{order}I", exif, 4)
        (entries,) = struct.unpack_from(f"{order}H", exif, directory)
        for at in range(directory + 2, directory + 2 + 12 * min(entries, MAX_PARTS), 12):
            tag, kind, count = struct.unpack_from(f"{order}HHI", exif, at)
            if tag == _ORIENTATION and kind in _VALUES and count == 1:
                return int(struct.unpack_from(f"{order}{_VALUES[kind]}", exif, at + 8)[0])
    except struct.error:
        pass
    return None
