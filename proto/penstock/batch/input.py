"""Reader of files in the OpenAI batch input format: one JSON object per line, {"custom_id", "method", "url", "body"}.

Pure, and strict: a field that Penstock does not support is an error, unless its value changes nothing. The caller may
have such fields ignored where they do not change answers; they are then listed. Bodies may also use the names that
vLLM's server adds: top_k, min_p, repetition_penalty, min_tokens, stop_token_ids, ignore_eos, session_id, documents,
chat_template_kwargs, include_reasoning, continue_final_message, structured_outputs, and the older guided_json,
guided_regex, guided_choice and guided_grammar.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from penstock.batch.body import Body, read_body
from penstock.batch.embeddings import EMBEDDINGS_URL, EmbedBody, read_embed_line
from penstock.batch.encoding import encoding_problem, is_unicode
from penstock.values.chat import chat_fields
from penstock.values.jobs import EmbedItem, JobItem
from penstock.values.objects import BodyError, Fields, parse_json, shown

CHAT_URL = "/v1/chat/completions"
COMPLETIONS_URL = "/v1/completions"
Endpoints: TypeAlias = Mapping[str, Callable[[Fields], Body | EmbedBody]]
_RESPONSES = "/v1/responses"
ENDPOINTS: Endpoints = {
    CHAT_URL: partial(read_body, chat=True),
    COMPLETIONS_URL: partial(read_body, chat=False),
    EMBEDDINGS_URL: read_embed_line,
}
"""Readers of bodies by the URL of a line."""


class BatchFileError(BodyError):
    """Error of a line that can't be a request; names the line and field."""

    def __init__(self, line: int, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.line = line
        """Line number, from 1."""
        self.args = (f"line {line}: {self}",)

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copy and pickle, which by default would call the class with the message alone."""
        return type(self), (self.line, self.field, self.problem), self.__dict__


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a file."""

    url: str
    model: str
    item: JobItem | EmbedItem
    ignored: tuple[str, ...]
    """Paths of unsupported fields that were left out at the caller's wish."""
    repeated: str = ""
    """Fields of the request that the answer repeats, as the text of a JSON object; empty for none."""
    constraint: str = ""
    """Name of the field with the constraint on the output; empty for none."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A whole file."""

    model: str
    items: tuple[JobItem | EmbedItem, ...]
    ignored: Mapping[str, int]
    """Ignored fields, and the number of lines that have each."""


def read_batch(lines: Iterable[str], *, ignore_unknown: bool = False) -> Batch:
    """Read a file; empty lines are skipped.

    Raises:
        BatchFileError: a line is wrong, repeats a custom_id or names another model, or the file has no request.
    """
    model = ""
    items: list[JobItem | EmbedItem] = []
    first_line: dict[str, int] = {}
    ignored: dict[str, int] = {}
    number = 0
    for number, text in enumerate(lines, 1):
        if not text.removeprefix("\ufeff").strip():
            continue
        line = read_line(text, number, ignore_unknown=ignore_unknown)
        model = model or line.model
        if line.model != model:
            raise BatchFileError(number, "body.model", f"must be {model!r} as on the lines before, got {line.model!r}")
        earlier = first_line.setdefault(line.item.custom_id, number)
        if earlier != number:
            raise BatchFileError(number, "custom_id", f"{line.item.custom_id!r} is on line {earlier} already")
        for field in line.ignored:
            ignored[field] = ignored.get(field, 0) + 1
        items.append(line.item)
    if not items:
        raise BatchFileError(max(1, number), "", "the file has no requests")
    return Batch(model, tuple(items), ignored)


def read_line(text: str, number: int, *, ignore_unknown: bool = False, endpoints: Endpoints = ENDPOINTS) -> BatchLine:
    """Read one line.

    Args:
        text: the line.
        number: of the line, from 1, for errors.
        ignore_unknown: whether fields that are not supported, and do not change answers, are left out.
        endpoints: readers of bodies by the URL of a line.

    Raises:
        BatchFileError: the line is no request that can be served as written.
    """
    try:
        return _read_line(text, ignore_unknown, endpoints)
    except BodyError as error:
        raise BatchFileError(number, error.field, error.problem) from None
    except RecursionError:
        # JSON that can just be parsed may be too deep to be written again, as errors and schemas need.
        raise BatchFileError(number, "", "is nested too deeply") from None


def _read_line(text: str, ignore_unknown: bool, endpoints: Endpoints) -> BatchLine:
    # Editors and spreadsheets put a byte order mark at the beginning of a file.
    text = text.removeprefix("\ufeff")
    if (problem := encoding_problem(text)) is not None:
        raise BodyError("", problem)
    try:
        line = parse_json(text)
    except json.JSONDecodeError as error:
        raise BodyError("", f"is no JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:
        raise BodyError("", str(error)) from None
    if "\\ud" in text.lower() and not is_unicode(line):
        raise BodyError("", "has half of a surrogate pair, which is no character")
    if not isinstance(line, dict):
        raise BodyError("", f"must be an object, got {shown(line)}")
    fields = Fields("", line, ignore_unknown)
    custom_id = fields.text("custom_id")
    if not custom_id:
        raise fields.wrong("custom_id", "is required")
    method, url = fields.text("method"), fields.text("url")
    if method != "POST":
        raise fields.wrong("method", f'must be "POST", got {shown(method)}')
    if url not in endpoints:
        elsewhere = "; a batch over HTTP (POST /v1/files, then /v1/batches) takes it" if url == _RESPONSES else ""
        raise fields.wrong("url", f"must be {' or '.join(endpoints)}, got {shown(url)}{elsewhere}")
    body = fields.object("body")
    if body is None:
        raise fields.wrong("body", "is required")
    request = endpoints[url](body)
    if isinstance(request, EmbedBody):
        embed = EmbedItem(custom_id, request.inputs, request.dimensions, request.normalize, request.options)
        ignored = (*fields.leftovers(), *request.ignored)
        return BatchLine(url, request.request.model, embed, ignored, request.repeated)
    item = JobItem(
        custom_id,
        request.prompt,
        request.sampling,
        session_id=request.session_id,
        **chat_fields(request.options),
    )
    ignored = (*fields.leftovers(), *request.ignored)
    return BatchLine(url, request.model, item, ignored, request.repeated, request.constraint)
