"""`penstock apply`."""

from __future__ import annotations

from router.commands.registry.command import add_apply_flags as add_flags

__all__ = ["add_flags"]
