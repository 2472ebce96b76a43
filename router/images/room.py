"""Room for images in a router's memory, where they stay until their requests have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cluster.errors import UnavailableError
from router.validation import ChatPrompt, Prompt

_LATER_S = 1.0
_MIB = 1 << 20


class ImageRoom:
    """Bytes of images that a router may hold. Without a bound, a long line would end the process with all its streams.

    A request finds room in an empty one however large it is.
    """

    def __init__(self, most_bytes: float) -> None:
        self._most = most_bytes
        self.held = 0

    def take(self, size: int) -> Callable[[], None]:
        """Take room for the images of a request. Return what gives it back.

        Raises:
            UnavailableError: there is not enough now.
        """
        if not size:
            return _nothing
        if self.held and self.held + size > self._most:
            raise UnavailableError(
                f"this router holds {self.held / _MIB:.0f} MiB of images of other requests, and at most "
                f"{self._most / _MIB:g} MiB with these {size / _MIB:.1f} (router.max_images_mb)",
                _LATER_S,
            )
        self.held += size
        # More than one may end a request.
        taken = [size]
        return lambda: self._give_back(taken.pop() if taken else 0)

    @contextmanager
    def during(self, prompt: Prompt) -> Iterator[None]:
        """Take room for the images of a prompt while it becomes tokens. It may wait for a replica, or for a turn of its
        tenant.

        Raises:
            UnavailableError: there is not enough now.
        """
        images = prompt.images() if isinstance(prompt, ChatPrompt) else ()
        give_back = self.take(sum(len(image.data) for _field, image in images))
        try:
            yield
        finally:
            give_back()

    def _give_back(self, size: int) -> None:
        self.held -= size


def _nothing() -> None:
    """Give back nothing."""
