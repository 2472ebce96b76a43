"""Checks of images by the heads of their files. Nothing is decoded: replicas do that."""

from __future__ import annotations

from cluster.image_files import ImageFileError, size_of
from penstock.v1 import types_pb2
from router.validation.values import Image
from router.validation.violations import Violations

MAX_BYTES = 32 << 20
"""Most bytes of all images of a conversation, which travel to a replica in one message of 64 MiB at most."""


def check_image(found: Violations, where: str, wire: types_pb2.Image) -> Image:
    """Check an image and convert it. One that is wrong has no size."""
    try:
        return Image(wire.data, *size_of(wire.data))
    except ImageFileError as error:
        found.add(f"{where}.data", str(error))
        return Image(wire.data, 0, 0)
