"""Modes of controllers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator


def _off(value: Any) -> Any:
    return "off" if value is False else value


Mode = Annotated[Literal["off", "advisory", "active"], BeforeValidator(_off)]
"""Mode of a controller. False is "off" too, because YAML reads an unquoted off as false."""
