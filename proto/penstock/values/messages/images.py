"""Images in messages, also as the APIs of OpenAI and Anthropic write them: as text in base64. Nothing is fetched."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.values.objects import BodyError, Fields, shown
from penstock.values.unsupported import IMAGE_URL

IMAGE_TYPES = ("image_url", "input_image")
"""Types of OpenAI's parts with an image."""
MEDIA_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
_ALSO = ("image/jpg",)
"""Names that no standard has and many programs write. The content of the file decides in any case."""
_LONGEST_SHOWN = 100
"""Characters of a value that an error can need. A whole one may be megabytes."""
_EXAMPLE = "data:image/png;base64,..."
_FETCHES_NOTHING = f"Penstock fetches nothing: send the image's content as a data URL, {_EXAMPLE}"


@dataclass(frozen=True, slots=True)
class Image:
    """Image in a message, for models that take images."""

    data: bytes = field(repr=False)
    """Content of a PNG, JPEG, WebP or GIF file of at most 64 million pixels. Of a moving picture the model sees the
    first one."""


def read_image(fields: Fields) -> Image:
    """Read a part with an image: {"type": "image", "data": ...} with bytes, or one of OpenAI's `IMAGE_TYPES`.

    Raises:
        BodyError: it is none; names the field.
    """
    if fields.text("type") == "image":
        return _own_image(fields)
    if (file_id := fields.take("file_id")) is not None:
        raise fields.wrong("file_id", f"is not supported, got {shown(file_id)}; {_FETCHES_NOTHING}")
    url: object = fields.take("image_url")
    if not isinstance(url, Mapping):
        return Image(_content_of(fields.wrong("image_url", "").field, url))
    inner = fields.child("image_url", url)
    image = Image(_content_of(inner.wrong("url", "").field, inner.take("url")))
    fields.also_ignored(inner.leftovers(IMAGE_URL))
    return image


def _own_image(fields: Fields) -> Image:
    data = fields.take("data")
    if not isinstance(data, bytes):
        in_json = f'; in JSON an image is {{"type": "image_url", "image_url": {{"url": "{_EXAMPLE}"}}}}'
        raise fields.wrong("data", f"must be the bytes of a file, got {_start(data)}{in_json}")
    if not data:
        raise fields.wrong("data", "must not be empty")
    return Image(data)


def _content_of(where: str, url: object) -> bytes:
    """Return the content of a data URL."""
    if not isinstance(url, str) or not url:
        raise BodyError(where, f"must be a data URL with the image's content, {_EXAMPLE}; got {_start(url)}")
    scheme, _, rest = url[:_LONGEST_SHOWN].partition(":")
    if scheme.lower() != "data":
        raise BodyError(where, f"must be a data URL, got {_start(url)}; {_FETCHES_NOTHING}")
    head, comma, _ = rest.partition(",")
    media_type, *others = head.split(";")
    if not comma or not others or others[-1].strip().lower() != "base64":
        raise BodyError(where, f"must be a data URL in base64, {_EXAMPLE}; got {_start(url)}")
    check_media_type(where, media_type.strip())
    # Without a slice between them: each would be one more copy of megabytes.
    return from_base64(where, url[url.index(",") + 1 :])


def check_media_type(where: str, media_type: object) -> None:
    """Check the type that a client gives for an image.

    Raises:
        BodyError: it is none of those that models take.
    """
    if not isinstance(media_type, str) or media_type.lower() not in (*MEDIA_TYPES, *_ALSO):
        raise BodyError(where, f"must be an image of type {', '.join(MEDIA_TYPES)}, got {_start(media_type)}")


def from_base64(where: str, text: object) -> bytes:
    """Return the content that a text in base64 has.

    Raises:
        BodyError: it is empty, or no base64.
    """
    if not isinstance(text, str):
        raise BodyError(where, f"must be text in base64, got {_start(text)}")
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise BodyError(
            where, f"must be base64: {str(error)[:1].lower()}{str(error)[1:]}; got {_start(text)}"
        ) from None
    if not data:
        raise BodyError(where, "must not be empty")
    return data


def url_problem(kind: object) -> str:
    """Return what is wrong with a source of an image that is somewhere else."""
    return f"must be base64, got {_start(kind)}; Penstock fetches nothing: send the image's content"


def _start(value: Any) -> str:
    return shown(value[:_LONGEST_SHOWN] if isinstance(value, str | bytes) else value)
