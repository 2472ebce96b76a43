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
from router.tokens.blame import EFFORT_FIELD, blamed
from router.tokens.forms import Forms
from router.tokens.marks import Conversation, Lost, is_image
from router.tokens.roles import ImagePlace, Said, as_said, developer_as_system, systems_first
from router.tokens.template import FIELD, Template
from router.validation import ChatPrompt
from router.validation.values import NO_EFFORT
from router.validation.violations import shown

_CONTINUE_FIELD = f"{FIELD}.continue_final_message"
_EFFORT = "reasoning_effort"
_SWITCHES = ("enable_thinking", "thinking")
"""Variables with which templates switch reasoning on and off."""
_MAX_CHARACTERS = LimitSettings().max_rendered_characters


class ChatTemplate:
    """Chat template with the special tokens that it may use.

    The text is that of `transformers` for the same conversation. Some things are changed as in vLLM's server, and only
    where the template needs it: the role `developer` becomes `system`, system messages become one at the beginning, and
    content becomes a list of text parts. A conversation of which the template would still drop a message, a tool or a
    call is refused.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        tool_use: str = "",
        max_characters: int = _MAX_CHARACTERS,
    ) -> None:
        """Compile a template, whose texts may have `max_characters`.

        Args:
            source: the template.
            special_tokens: tokens that it may use, by their names as variables.
            tool_use: the template of conversations with tools; empty for the same one.
            max_characters: longest text that it may render.

        Raises:
            jinja2.TemplateError: a source is no template.
        """
        variables = {"tools": None, "documents": None, **(special_tokens or {}), "add_generation_prompt": True}
        self._variables = variables
        self._plain = _Compiled(source, variables, max_characters)
        self._with_tools = _Compiled(tool_use, variables, max_characters) if tool_use else self._plain

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
            source, tool_use = files[TEMPLATE_FILE].decode(), ""
        else:
            source, tool_use = (_named(config.get("chat_template"), name) for name in ("default", "tool_use"))
        if not source:
            return None
        return cls(source, _special_tokens(config), tool_use=tool_use, max_characters=max_characters)

    def render(self, prompt: ChatPrompt, image: ImagePlace | None = None) -> str:
        """Return the text of a conversation of at least one message. `image` stands for each of its images.

        Raises:
            InvalidRequestError: the template refuses the conversation, would drop something of it, or does not know the
                amount of reasoning asked for; a text has what stands for an image.
        """
        compiled = self._with_tools if prompt.tools else self._plain
        compiled.check_effort(prompt.effort)
        if image is not None:
            _check_texts(prompt, image)
        try:
            return self._text(compiled, prompt, image)
        except InvalidRequestError as error:
            raise blamed(error, prompt, compiled.variables, lambda less: self._text(compiled, less, image)) from error

    def _text(self, compiled: _Compiled, prompt: ChatPrompt, image: ImagePlace | None) -> str:
        said = as_said(prompt.messages, image)
        if not compiled.knows_developer:
            said = developer_as_system(said)
        try:
            return self._text_of(compiled, prompt, said)
        except InvalidRequestError as error:
            # Many templates take a system message at the beginning alone, and agents send later ones too.
            moved = systems_first(said)
            if moved == said:
                raise
            try:
                return self._text_of(compiled, prompt, moved)
            except InvalidRequestError:
                raise error from None

    def _text_of(self, compiled: _Compiled, prompt: ChatPrompt, said: Sequence[Said]) -> str:
        asked = Conversation(
            said,
            {**self._variables, **prompt.variables()},
            prompt.tools,
            tuple(map(json.loads, prompt.documents)),
        )
        silent = replace(asked, variables={**asked.variables, "add_generation_prompt": False})
        if not prompt.continue_final:
            return compiled.text(asked if prompt.begins_answer else silent)
        if said[-1].place != len(prompt.messages) - 1:
            raise InvalidRequestError.of(
                _CONTINUE_FIELD, "the last message has role 'developer', and goes to the beginning as a system message"
            )
        return compiled.continued(silent)


class _Compiled:
    """One template."""

    def __init__(self, source: str, variables: Mapping[str, Any], max_characters: int) -> None:
        self._template = Template(source, max_characters)
        self._forms = Forms(self._template, variables)
        self.variables = self._template.variables
        # vLLM's own test for the role.
        self.knows_developer = "'developer'" in source or '"developer"' in source

    def check_effort(self, effort: str) -> None:
        """Check that the template knows of amounts of reasoning.

        Raises:
            InvalidRequestError: it does not.
        """
        known = self.variables
        if not effort or _EFFORT in known:
            return
        switches = [name for name in _SWITCHES if name in known]
        if not switches:
            raise InvalidRequestError.of(
                EFFORT_FIELD, f"must be absent: the model's chat template does not know it, got {shown(effort)}"
            )
        if effort != NO_EFFORT:
            raise InvalidRequestError.of(
                EFFORT_FIELD,
                f"must be {NO_EFFORT!r} or absent: the model's chat template only switches reasoning on and off, with "
                f"{switches[0]} in template_kwargs, got {shown(effort)}",
            )

    def text(self, asked: Conversation) -> str:
        """Render a conversation."""
        trial = self._forms.of(asked)
        if trial.hidden is not None:
            raise self._forms.refusal(asked, trial.hidden)
        text = self._forms.text(asked, trial.form)
        if not trial.tried and (hidden := _missing(asked, text)) is not None:
            raise self._forms.refusal(asked, hidden)
        return text

    def continued(self, asked: Conversation) -> str:
        """Render a conversation up to the end of its last content."""
        # A mark that no message can contain shows where the content ends and the template's end-of-turn begins.
        mark = f"<<{secrets.token_hex(16)}>>"
        last = asked.messages[-1]
        content = (last.parts or (last.content,))[-1]
        # The space after the mark shows whether the template strips spaces at the end of a message.
        open_end = f"{content}{mark} "
        parts = (*last.parts[:-1], open_end) if last.parts else ()
        last = replace(last, content="\n".join(parts) or open_end, parts=parts)
        text, found, rest = self.text(replace(asked, messages=[*asked.messages[:-1], last])).rpartition(mark)
        if not found:
            raise InvalidRequestError.of(_CONTINUE_FIELD, "the model's chat template does not show the last message")
        kept = content.rstrip()
        return text.removesuffix(content[len(kept) :]) if kept and not rest.startswith(" ") else text


def _missing(asked: Conversation, text: str) -> Lost | None:
    """Return the first thing that a text lacks."""
    for index, message in enumerate(asked.messages):
        texts = [part for part in message.parts or (message.content,) if not is_image(part)]
        if not message.tool_calls and any(part.strip() not in text for part in texts):
            return Lost("message", index)
        for place, call in enumerate(message.tool_calls):
            if call.name not in text:
                return Lost("call", index, place)
    return next((Lost("tools", index) for index, tool in enumerate(asked.tools) if tool.name not in text), None)


def _check_texts(prompt: ChatPrompt, image: ImagePlace) -> None:
    """Check that no text has what stands for an image: nobody could tell them apart."""
    problem = f"must not have the text {image.core!r} beside images, because it stands for one with this model"
    for index, message in enumerate(prompt.messages):
        if any(image.core in text for text in ChatPrompt((message,)).texts()):
            raise InvalidRequestError.of(f"{FIELD}.messages[{index}]", problem)
    if any(image.core in text for text in prompt.texts()):
        raise InvalidRequestError.of(FIELD, problem)


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


def _named(template: Any, name: str) -> str:
    """Return a template of a configuration, which has none, a default one, or a list of named ones; empty for none."""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        return str(named.get(name) or "")
    return str(template or "") if name == "default" else ""
