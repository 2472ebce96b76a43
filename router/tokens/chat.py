"""Conversations rendered with a model's chat template, in the jinja2 dialect that model repositories use."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cluster.errors import InvalidRequestError
from cluster.settings import LimitSettings
from router.validation import Message

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FIELD = "prompt.chat"
_MAX_CHARACTERS = LimitSettings().max_rendered_characters


class ChatTemplate:
    """Compiled chat template with the special tokens that it may use. Rendering is synchronous and has no state."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, *, max_characters: int = _MAX_CHARACTERS
    ) -> None:
        """Compile a template. Its texts may have `max_characters`, so that a template that multiplies its input is
        stopped.

        Raises:
            jinja2.TemplateError: the source is no template.
        """
        self._template = _environment().from_string(source)
        self._special_tokens = dict(special_tokens or {})
        self._max_characters = max_characters

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], *, max_characters: int = _MAX_CHARACTERS) -> ChatTemplate | None:
        """Compile the template among tokenizer files; return None where there is none. The template's own file wins
        over the configuration.

        Raises:
            jinja2.TemplateError: the source is no template.
            ValueError: the configuration is not a JSON object, or the template's file not UTF-8.
            TypeError, RecursionError: the content cannot be a template.
        """
        config = json.loads(files.get(CONFIG_FILE, b"{}"))
        if not isinstance(config, dict):
            raise ValueError(f"{CONFIG_FILE} is not a JSON object")  # noqa: TRY004
        if TEMPLATE_FILE in files:
            source = files[TEMPLATE_FILE].decode()
        else:
            source = _named_default(config.get("chat_template"))
        tokens = {name: _token_text(config[name]) for name in _SPECIAL_TOKENS if config.get(name)}
        return cls(source, tokens, max_characters=max_characters) if source else None

    def render(self, messages: Sequence[Message], *, continue_final: bool = False) -> str:
        """Return the prompt text.

        Args:
            messages: oldest first, at least one.
            continue_final: whether the text ends with the last message's content instead of the header of a new turn.

        Raises:
            InvalidRequestError: the template refuses the conversation, or does not render the message to continue.
        """
        turns = [{"role": message.role, "content": message.content} for message in messages]
        if not continue_final:
            return self._render(turns, add_generation_prompt=True)
        # A mark that no message can contain shows where the content ends and the template's end-of-turn begins.
        mark = f"<<{secrets.token_hex(16)}>>"
        content = turns[-1]["content"]
        # The space after the mark shows whether the template strips spaces at the end of a message.
        turns[-1]["content"] = f"{content}{mark} "
        text, found, rest = self._render(turns, add_generation_prompt=False).rpartition(mark)
        if not found:
            raise InvalidRequestError.of(
                f"{_FIELD}.continue_final_message", "the model's chat template does not show the last message"
            )
        kept = content.rstrip()
        return text.removesuffix(content[len(kept) :]) if kept and not rest.startswith(" ") else text

    def _render(self, turns: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(
                messages=turns,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            ):
                pieces.append(piece)
                length += len(piece)
                if length > self._max_characters:
                    _refuse(f"its text is longer than {self._max_characters} characters")
        # Every failure of a template with a client's messages raises one of these.
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise InvalidRequestError.of(_FIELD, _describe(error)) from error
        except RecursionError as error:
            raise InvalidRequestError.of(_FIELD, "the model's chat template does not end") from error
        return "".join(pieces)


def _describe(error: Exception) -> str:
    return f"the model's chat template refuses the conversation: {str(error)[:200]}"


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


class _GenerationTag(Extension):
    """The tag `{% generation %}`, which marks the assistant's part for training. It changes nothing here."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML; models have not seen such escapes in training.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _named_default(template: Any) -> str:
    """Return the default template of a configuration, which has none, one, or a list of named ones; empty for none."""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        return str(named.get("default") or "")
    return str(template or "")


def _token_text(token: Any) -> str:
    """Return a special token's text. Configurations have a string, or an object with a `content`."""
    return str(token.get("content", "") if isinstance(token, dict) else token)
