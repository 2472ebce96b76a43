"""Root of all errors."""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Root of all errors raised on purpose."""

    reason: ClassVar[str] = "INTERNAL"
    """Stable word that clients, logs and metrics see."""
    remedy: ClassVar[str] = (
        "Tell your operator the incident id in the message. The router's log has the error under it."
    )
    """What to do about it, as Markdown; the reference page of errors has it."""
