"""Conversations rendered with a model's chat template, so that every message shows."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cluster.digests import CONFIG_FILE, TEMPLATE_FILE
from cluster.errors import InvalidRequestError
from cluster.settings import LimitSettings
from router.tokens.forms import Forms
from router.tokens.roles import Said, as_said, developer_as_system
from router.tokens.template import FIELD, Template
from router.validation import Message

_CONTINUE_FIELD = f"{FIELD}.continue_final_message"
_MAX_CHARACTERS = LimitSettings().max_rendered_characters


class ChatTemplate:
    """Chat template with the special tokens that it may use.

    The text is that of `transformers` for the same messages. Two things are changed as in vLLM's server, and only where
    the template needs it: the role `developer` becomes `system`, and content becomes a list of one text part. A
    conversation with a message that the template would still drop is refused.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, *, max_characters: int = _MAX_CHARACTERS
    ) -> None:
        """Compile a template, whose texts may have `max_characters`.

        Raises:
            jinja2.TemplateError: the source is no template.
        """
        self._template = Template(source, max_characters)
        self._variables = {"tools": None, "documents": None, **(special_tokens or {}), "add_generation_prompt": True}
        self._forms = Forms(self._template, self._variables)
        # vLLM's own test for the role.
        self._knows_developer = "'developer'" in source or '"developer"' in source

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], *, max_characters: int = _MAX_CHARACTERS) -> ChatTemplate | None:
        """Compile the template among tokenizer files; return None where there is none. The template's own file wins
        over the configuration.

        Raises:
            jinja2.TemplateError: the source is no template.
            ValueError: the configuration is not a JSON object, or the template's file not UTF-8.
            TypeError, RecursionError: the content cannot be a template.
        """
        config = _configuration(files)
        if TEMPLATE_FILE in files:
            source = files[TEMPLATE_FILE].decode()
        else:
            source = _named_default(config.get("chat_template"))
        return cls(source, _special_tokens(config), max_characters=max_characters) if source else None

    def render(self, messages: Sequence[Message], *, continue_final: bool = False) -> str:
        """Return the prompt text.

        Args:
            messages: oldest first, at least one.
            continue_final: whether the text ends with the last message's content instead of the header of a new turn.

        Raises:
            InvalidRequestError: the template refuses the conversation, or would drop a message of it.
        """
        said = as_said(messages)
        if not self._knows_developer:
            said = developer_as_system(said)
        if not continue_final:
            return self._render(said, self._variables)
        if said[-1].place != len(messages) - 1:
            raise InvalidRequestError.of(
                _CONTINUE_FIELD, "the last message has role 'developer', and goes to the beginning as a system message"
            )
        return self._continued(said, {**self._variables, "add_generation_prompt": False})

    def _continued(self, said: list[Said], variables: Mapping[str, Any]) -> str:
        """Render a conversation up to the end of its last content."""
        # A mark that no message can contain shows where the content ends and the template's end-of-turn begins.
        mark = f"<<{secrets.token_hex(16)}>>"
        content = said[-1].content
        # The space after the mark shows whether the template strips spaces at the end of a message.
        said[-1] = replace(said[-1], content=f"{content}{mark} ")
        text, found, rest = self._render(said, variables).rpartition(mark)
        if not found:
            raise InvalidRequestError.of(_CONTINUE_FIELD, "the model's chat template does not show the last message")
        kept = content.rstrip()
        return text.removesuffix(content[len(kept) :]) if kept and not rest.startswith(" ") else text

    def _render(self, said: list[Said], variables: Mapping[str, Any]) -> str:
        form = self._forms.of(said, variables)
        if form.hidden is not None:
            raise self._forms.refusal(said[form.hidden])
        text = self._template.text(form.turns(said), variables)
        if not form.tried:
            for message in said:
                if message.content.strip() not in text:
                    raise self._forms.refusal(message)
        return text


def splits_special_tokens(files: Mapping[str, bytes]) -> bool:
    """Return whether the names of special tokens in a text are plain text for the tokenizer.

    Raises:
        ValueError: the configuration is not a JSON object.
        RecursionError: it is nested too deep.
    """
    return _configuration(files).get("split_special_tokens") is True


def _configuration(files: Mapping[str, bytes]) -> dict[str, Any]:
    config = json.loads(files.get(CONFIG_FILE, b"{}"))
    if not isinstance(config, dict):
        raise ValueError(f"{CONFIG_FILE} is not a JSON object")  # noqa: TRY004
    return config


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokens that templates see as variables: those with a name that ends in `_token`, and named extra ones.

    A token is a text, or an object with its text as `content`.
    """
    named = {name: token for name, token in config.items() if name.endswith("_token")}
    for more in ("extra_special_tokens", "model_specific_special_tokens"):
        if isinstance(config.get(more), dict):
            named |= config[more]
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in named.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str) and text}


def _named_default(template: Any) -> str:
    """Return the default template of a configuration, which has none, one, or a list of named ones; empty for none."""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        return str(named.get("default") or "")
    return str(template or "")
