"""The form in which a chat template shows all of a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from cluster.errors import InvalidRequestError
from router.tokens.marks import Conversation, Lost, digest, lost, marked
from router.tokens.roles import Said
from router.tokens.template import FIELD, Template, Turn
from router.tokens.turns import Form, tools_as_objects

_TEXT_ONLY = frozenset({"tool"})
"""Roles whose content is always text: vLLM's server gives templates the results of tools so."""
_USUAL_ROLES = ("system", "developer", "user", "assistant", "tool")
_MOST_KNOWN = 1_024
"""Most conversations, by their shapes, of which the form is kept."""
_NOT_SHOWN = "the model's chat template does not show {}"


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a trial."""

    form: Form
    hidden: Lost | None = None
    """First thing that the template shows in no form."""
    tried: bool = True
    """Whether the trial worked. The template may take only texts of a certain kind."""


class Forms:
    """Trials of one template: marks in place of a conversation's texts show which of them it shows.

    Templates drop messages without a sign, by role, by position, or because they know content only as a list of parts.
    Some drop tools, and calls of them. A conversation is tried once for all of the same shape.
    """

    def __init__(self, template: Template, variables: Mapping[str, Any]) -> None:
        """`variables` are the usual ones: what is tried for a role alone must not depend on the first request."""
        self._template = template
        self._usual = variables
        self._known: dict[bytes, Trial] = {}
        self._parts: dict[tuple[str, bool], bool] = {}
        """Whether a role needs parts, and whether it knows them where there are several."""
        self._roles: tuple[str, ...] | None = None

    def of(self, asked: Conversation) -> Trial:
        """Return the form for a conversation."""
        marks = marked(asked)
        key = digest(marks)
        known = self._known.get(key)
        if known is None:
            known = self._try(marks)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = known
        return known

    def text(self, asked: Conversation, form: Form) -> str:
        """Render a conversation in a form.

        Raises:
            InvalidRequestError: the template refuses it.
        """
        turns: list[Turn] = form.turns(asked.messages)
        variables = {
            **asked.variables,
            "tools": tools_as_objects(asked.tools),
            "documents": list(asked.documents) or None,
        }
        return self._template.text(turns, variables)

    def refusal(self, asked: Conversation, hidden: Lost) -> InvalidRequestError:
        """Return the error for what would be lost of a conversation."""
        if hidden.kind in ("tools", "documents"):
            where = f"{FIELD}.{hidden.kind}[{hidden.index}]"
            return InvalidRequestError.of(where, f"would be lost: {_NOT_SHOWN.format(hidden.kind)}")
        message = asked.messages[hidden.index]
        where = f"{FIELD}.messages[{message.place}]"
        if hidden.kind == "call":
            where = f"{where}.tool_calls[{hidden.call}]"
            return InvalidRequestError.of(where, f"would be lost: {_NOT_SHOWN.format('it')}")
        if self._roles is None:
            self._roles = self._shown_roles()
        if message.role in self._roles:
            return InvalidRequestError.of(
                where,
                "would be lost: the model's chat template shows messages of role "
                f"{message.role!r}, but not at this place",
            )
        shown = ", ".join(map(repr, self._roles)) or "no messages at all"
        return InvalidRequestError.of(
            f"{where}.role", f"{_NOT_SHOWN.format(f'messages of role {message.role!r}')}; it shows: {shown}"
        )

    def _try(self, marks: Conversation) -> Trial:
        roles = frozenset(message.role for message in marks.messages)
        needs = frozenset(role for role in roles if self._takes_parts(role, several=False))
        several = frozenset(message.role for message in marks.messages if message.parts)
        usual = Form(needs, frozenset(role for role in several if self._takes_parts(role, several=True)))
        gone = self._lost(marks, usual)
        if gone == []:
            return Trial(usual)
        # Rare: what a role needs depends on its place, calls have another form, or something is lost in any form.
        for form in dict.fromkeys(_others(usual, marks, gone)):
            if self._lost(marks, form) == []:
                return Trial(form)
        return Trial(usual, tried=False) if gone is None else Trial(usual, hidden=gone[0])

    def _takes_parts(self, role: str, *, several: bool) -> bool:
        """Return whether the template shows a message of one part as a list only, or one of several parts as a list
        too.
        """
        if role in _TEXT_ONLY:
            return False
        if (known := self._parts.get((role, several))) is None:
            if len(self._parts) >= _MOST_KNOWN:
                self._parts.clear()
            alone = marked(Conversation([Said(role, "x", 0, ("x", "x") if several else ())], self._usual))
            as_list = self._lost(alone, Form(frozenset({role}))) == []
            known = as_list and (several or self._lost(alone, Form()) != [])
            self._parts[role, several] = known
        return known

    def _lost(self, marks: Conversation, form: Form) -> list[Lost] | None:
        """Return what the template does not show; None where it refuses the conversation."""
        try:
            text = self.text(marks, form)
        except InvalidRequestError:
            return None
        return lost(marks, text, parts=bool(form.parts or form.knows_parts))

    def _shown_roles(self) -> tuple[str, ...]:
        candidates = dict.fromkeys((*_USUAL_ROLES, *self._template.names))
        return tuple(role for role in candidates if self._shows(role))

    def _shows(self, role: str) -> bool:
        around = (((), ()), (("user",), ()), (("user",), ("user",)), (("user", "assistant"), ()))
        trials = (
            self._try(marked(Conversation([Said(each, "x", 0) for each in (*before, role, *after)], self._usual)))
            for before, after in around
        )
        return any(trial.tried and trial.hidden is None for trial in trials)


def _others(usual: Form, marks: Conversation, gone: Sequence[Lost] | None) -> Iterator[Form]:
    """Yield forms to try after the usual one."""
    every = frozenset(message.role for message in marks.messages) - _TEXT_ONLY
    if gone is None:
        some = every
    else:
        some = frozenset(marks.messages[each.index].role for each in gone if each.kind == "message") - _TEXT_ONLY
    if any(message.tool_calls for message in marks.messages):
        for options in sorted(product((False, True), repeat=3), key=sum):
            yield replace(usual, text_arguments=options[0], no_content=options[1], short_ids=options[2])
    for roles in (frozenset[str](), some, every):
        yield Form(roles)
