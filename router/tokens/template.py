"""Chat templates, in the jinja2 dialect that model repositories use."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cluster.errors import InvalidRequestError

FIELD = "prompt.chat"
REFUSES = "the model's chat template refuses"

Turn = Mapping[str, Any]
"""Message as a template sees it: `role`, `content`, which is text or a list of parts, and what else it has."""


class Template:
    """Compiled template. Rendering is synchronous and has no state."""

    def __init__(self, source: str, max_characters: int) -> None:
        """Compile a template. Its texts may have `max_characters`, so that a template that multiplies its input is
        stopped.

        Raises:
            jinja2.TemplateError: the source is no template.
        """
        environment = _environment()
        self._compiled = environment.from_string(source)
        self._max_characters = max_characters
        tree = environment.parse(source)
        self.names = _compared_names(tree)
        """Texts that the template compares something with. The roles that it knows are among them."""
        # Last, because it changes the tree.
        self.variables = frozenset(meta.find_undeclared_variables(tree))
        """Names of the variables that the template looks at."""

    def text(self, turns: list[Turn], variables: Mapping[str, Any]) -> str:
        """Render a conversation. `variables` are all that the template sees beside the messages.

        Raises:
            InvalidRequestError: the template refuses the conversation, or its text is too long.
        """
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._compiled.generate({**variables, "messages": turns}):
                pieces.append(piece)
                length += len(piece)
                if length > self._max_characters:
                    _refuse(f"its text is longer than {self._max_characters} characters")
        # Every failure of a template with a client's messages raises one of these.
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise InvalidRequestError.of(FIELD, _describe(error)) from error
        except RecursionError as error:
            raise InvalidRequestError.of(FIELD, "the model's chat template does not end") from error
        return "".join(pieces)


def _compared_names(tree: nodes.Template) -> tuple[str, ...]:
    sides = [side for node in tree.find_all(nodes.Compare) for side in (node.expr, *(each.expr for each in node.ops))]
    sides += [item for side in sides if isinstance(side, nodes.List | nodes.Tuple) for item in side.items]
    return tuple(
        sorted({side.value for side in sides if isinstance(side, nodes.Const) and isinstance(side.value, str)})
    )


def _describe(error: Exception) -> str:
    return f"{REFUSES} the conversation: {str(error)[:200]}"


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


class _GenerationTag(Extension):
    """The tag `{% generation %}`, which marks the assistant's part for training. Its text stays as it is."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A block with variables of its own, as in transformers.
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


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
