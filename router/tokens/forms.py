"""The form in which a chat template shows all messages of a conversation."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from cluster.errors import InvalidRequestError
from router.tokens.roles import Said
from router.tokens.template import FIELD, Template, Turn

_TEXT_ONLY = frozenset({"tool"})
"""Roles whose content is always text: vLLM's server gives templates the results of tools so."""
_USUAL_ROLES = ("system", "developer", "user", "assistant", "tool")
_MOST_KNOWN = 1_024
"""Most conversations, by their roles, of which the form is kept."""


@dataclass(frozen=True, slots=True)
class Form:
    """Result of a trial."""

    parts: frozenset[str] = frozenset()
    """Roles whose content is passed as a list of parts. The others' is passed as text."""
    hidden: int | None = None
    """Position of the first message that the template shows in no form."""
    tried: bool = True
    """Whether the trial worked. The template may take only contents of a certain kind."""

    def turns(self, messages: Iterable[Said]) -> list[Turn]:
        """Return the messages as the template takes them."""
        return [{"role": message.role, "content": self._content(message)} for message in messages]

    def _content(self, message: Said) -> str | list[dict[str, str]]:
        return [{"type": "text", "text": message.content}] if message.role in self.parts else message.content


class Forms:
    """Trials of one template: marks in place of the messages' texts show which messages it shows.

    Templates drop messages without a sign, by role, by position, or because they know content only as a list of parts.
    A conversation is tried once for all that have the same roles in the same order.
    """

    def __init__(self, template: Template, variables: Mapping[str, Any]) -> None:
        """`variables` are the usual ones: what is tried for a role alone must not depend on the first request."""
        self._template = template
        self._usual = variables
        self._known: dict[bytes, Form] = {}
        self._parts: dict[str, bool] = {}
        """Whether a role needs parts."""
        self._roles: tuple[str, ...] | None = None
        # In no template's text. Short, because some templates look at every character.
        self._word = f"m{secrets.token_hex(4)}x"

    def of(self, messages: Sequence[Said], variables: Mapping[str, Any]) -> Form:
        """Return the form for a conversation. `variables` are JSON values."""
        key = blake2b(digest_size=16)
        for message in messages:
            key.update(f"{message.role}\0{message.blank:d}\0".encode())
        key.update(json.dumps(variables, sort_keys=True).encode())
        known = self._known.get(key.digest())
        if known is None:
            known = self._try(messages, variables)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key.digest()] = known
        return known

    def refusal(self, message: Said) -> InvalidRequestError:
        """Return the error for a message that would be lost."""
        if self._roles is None:
            self._roles = self._shown_roles()
        where = f"{FIELD}.messages[{message.place}]"
        if message.role in self._roles:
            return InvalidRequestError.of(
                where,
                "would be lost: the model's chat template shows messages of role "
                f"{message.role!r}, but not at this place",
            )
        shown = ", ".join(map(repr, self._roles)) or "no messages at all"
        return InvalidRequestError.of(
            f"{where}.role",
            f"the model's chat template does not show messages of role {message.role!r}; it shows: {shown}",
        )

    def _try(self, messages: Sequence[Said], variables: Mapping[str, Any]) -> Form:
        usual = frozenset(role for role in {message.role for message in messages} if self._needs_parts(role))
        lost = self._lost(messages, usual, variables)
        if lost == []:
            return Form(usual)
        # Rare: what a role needs depends on its place, or the message is lost in any form.
        every = frozenset(message.role for message in messages) - _TEXT_ONLY
        some = every if lost is None else frozenset(messages[index].role for index in lost) - _TEXT_ONLY
        for roles in dict.fromkeys((frozenset[str](), some, every)):
            if self._lost(messages, roles, variables) == []:
                return Form(roles)
        return Form(usual, tried=False) if lost is None else Form(usual, hidden=lost[0])

    def _needs_parts(self, role: str) -> bool:
        """Return whether the template shows a single message of a role as a list of parts only."""
        if role in _TEXT_ONLY:
            return False
        if role not in self._parts:
            if len(self._parts) >= _MOST_KNOWN:
                self._parts.clear()
            alone = [Said(role, "x", 0)]
            as_text = self._lost(alone, frozenset(), self._usual) == []
            self._parts[role] = not as_text and self._lost(alone, frozenset({role}), self._usual) == []
        return self._parts[role]

    def _lost(self, messages: Sequence[Said], parts: frozenset[str], variables: Mapping[str, Any]) -> list[int] | None:
        """Return the positions of messages that the template does not show; None where it refuses them."""
        marks = {index: f"{self._word}{index}z" for index, message in enumerate(messages) if not message.blank}
        marked = [
            Said(message.role, marks.get(index, message.content), message.place)
            for index, message in enumerate(messages)
        ]
        try:
            # Some write contents in capitals.
            text = self._template.text(Form(parts).turns(marked), variables).lower()
        except InvalidRequestError:
            return None
        # A part that is written as the list that it is was not understood.
        for raw in (f"'text': '{self._word}", f'"text": "{self._word}') if parts else ():
            text = text.replace(raw, "")
        return [index for index, mark in marks.items() if mark not in text]

    def _shown_roles(self) -> tuple[str, ...]:
        candidates = dict.fromkeys((*_USUAL_ROLES, *self._template.names))
        return tuple(role for role in candidates if self._shows(role))

    def _shows(self, role: str) -> bool:
        around = (((), ()), (("user",), ()), (("user",), ("user",)), (("user", "assistant"), ()))
        forms = (
            self._try([Said(each, "x", 0) for each in (*before, role, *after)], self._usual) for before, after in around
        )
        return any(form.tried and form.hidden is None for form in forms)
