"""Roles that a chat template lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from cluster.errors import InvalidRequestError
from penstock.models import ToolCall
from router.tokens.template import FIELD
from router.validation import Message


class ImagePlace(str):
    """Part that is an image: the text that stands for one in a prompt of the model."""

    core: str
    """Part of the text that the engine replaces by the image."""

    def __new__(cls, text: str, core: str) -> Self:
        place = super().__new__(cls, text)
        place.core = core
        return place


@dataclass(frozen=True, slots=True)
class ImageMark:
    """Text that stands for an image in prompts of a model."""

    text: str
    ids: tuple[int, ...]
    """Ids in that text which the engine replaces by the image."""


@dataclass(frozen=True, slots=True)
class Said:
    """Message in the role that the template gets."""

    role: str
    content: str
    place: int
    """Position of the client's message, from 0. The first one, where several are one message now."""
    parts: tuple[str, ...] = ()
    """Parts of the content, where there are several, or images. The content has them all, joined by line ends."""
    name: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str = ""

    @property
    def blank(self) -> bool:
        """Whether there is no text that could be lost."""
        return not self.content or self.content.isspace()


def as_said(messages: Sequence[Message], image: ImagePlace | None = None) -> list[Said]:
    """Return messages in the roles that they came with. Without `image`, they have no images."""
    return [_said(message, place, image) for place, message in enumerate(messages)]


def _said(message: Message, place: int, image: ImagePlace | None) -> Said:
    parts = tuple(part if isinstance(part, str) else image or "" for part in message.parts)
    return Said(
        message.role,
        message.content if image is None or image not in parts else "\n".join(parts),
        place,
        parts,
        message.name,
        message.tool_calls,
        message.tool_call_id,
        message.reasoning,
    )


def developer_as_system(messages: Sequence[Said]) -> list[Said]:
    """Give the messages of role `developer` the role `system`, as vLLM's server does for templates without that role.

    If a system message is then not the first one, all of them become one message at the beginning. Models have been
    trained with one there.
    """
    if all(message.role != "developer" for message in messages):
        return list(messages)
    return systems_first(
        [replace(message, role="system") if message.role == "developer" else message for message in messages]
    )


def systems_first(messages: Sequence[Said]) -> list[Said]:
    """Make all system messages one at the beginning. Without any, or with the first message alone, nothing changes.

    Raises:
        InvalidRequestError: an image would change places with another one. All look the same in a text.
    """
    systems = [message for message in messages if message.role == "system"]
    if not systems or systems == list(messages[:1]):
        return list(messages)
    behind = False
    for message in messages:
        shows = any(isinstance(part, ImagePlace) for part in message.parts)
        if shows and behind and message.role == "system":
            raise InvalidRequestError.of(
                f"{FIELD}.messages[{message.place}]",
                "must have no image behind those of other roles: with this model, system messages go to the beginning",
            )
        behind = behind or (shows and message.role != "system")
    text = "\n\n".join(message.content for message in systems if message.content)
    return [Said("system", text, systems[0].place), *(message for message in messages if message.role != "system")]
