"""Bodies of OpenAI's requests as requests of the API. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cluster.errors import InvalidRequestError
from penstock.batch.body import Body, read_body
from penstock.batch.encoding import is_unicode
from penstock.models import RequestClass
from penstock.v1 import inference_pb2 as api
from penstock.values.chat import chat_fields
from penstock.values.objects import UINT32, BodyError, Fields, parse_json, shown
from penstock.values.requests import GenerateOptions, request_to_proto
from router.http.errors import WrittenError, in_body
from router.validation.schema import depth_of

TIERS: Mapping[str, RequestClass] = {
    "auto": RequestClass.STANDARD,
    "default": RequestClass.STANDARD,
    "standard": RequestClass.STANDARD,
    "scale": RequestClass.STANDARD,
    "priority": RequestClass.INTERACTIVE,
    "fast": RequestClass.INTERACTIVE,
    "ultrafast": RequestClass.INTERACTIVE,
    "flex": RequestClass.BATCH,
}
"""Class of a request by its `service_tier`."""
_SHOWN_TIERS = {RequestClass.STANDARD: "default", RequestClass.INTERACTIVE: "priority"}
LAST_EVENT = "Last-Event-ID"
"""Header with the id of the last event that a client got before its connection broke."""
KEY, SESSION = "Idempotency-Key", "X-Session-ID"
RECEIPT = "x-penstock-receipt"
"""Header that asks for the receipt of a request."""
_LONGEST_ID = 256
_MAX_PAIRS, _MAX_NAME, _MAX_VALUE = 16, 64, 512
"""Bounds of metadata: pairs, and characters of a name and of a value."""
MOST_NESTED = 256
"""Most lists and objects inside each other in a body. Newer Pythons read tens of thousands, and fail later."""
CHAT_NAMES: Mapping[str, str] = {"sampling.logprobs": "top_logprobs", "prompt": "messages"}
"""Names of fields of chats, as `name_in` reads them: there `logprobs` is a flag, and `top_logprobs` the number."""
_NEWER = "max_completion_tokens"
"""Newer name of `max_tokens` in a chat, which goes before the older one."""
_TEXT_NAMES: Mapping[str, str] = {}
_LIMIT = re.compile(r"[0-9]{1,9}")
_INDEX = re.compile(r"\[\d+\]")
_SURROGATES, _ESCAPES = (b"\xed", b"\0"), (b"\\ud", b"\\uD")
"""Parts of a body, one of which it has if it has a surrogate: its first byte in UTF-8, a byte of UTF-16 and UTF-32, and
its escapes. To look at the whole value takes longer than to read it, to look for an escape as long."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a client."""

    generate: api.GenerateRequest
    stream: bool
    usage: bool
    """Whether a stream ends with its usage."""
    running_usage: bool
    """Whether every chunk of a stream has the usage so far."""
    token_ids: bool
    """Whether the ids of the output's tokens are returned, as vLLM's server does."""
    tokens_as_ids: bool
    """Whether log probabilities name tokens by their ids, as vLLM's server does."""
    tier: str
    """Tier that serves the request; empty where the client named none."""
    receipt: bool
    """Whether the usage has the receipt."""
    received: tuple[int, ...] | None
    """Tokens that a client which comes back has of each choice; None where it begins."""
    ignored: tuple[str, ...]
    """Fields that nobody knows, which were left out."""
    names: Mapping[str, str]
    """Paths of our fields, and what this body calls them, as `name_in` reads them."""


def read_json(data: bytes) -> Mapping[str, Any]:
    """Return the object in a body.

    Raises:
        BodyError: the body is no JSON object of text.
    """
    try:
        value = parse_json(data)
    except UnicodeDecodeError as error:
        raise BodyError("", f"must be UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise BodyError("", f"must be JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:
        raise BodyError("", str(error)) from None
    except RecursionError:
        raise BodyError("", f"must be nested at most {MOST_NESTED} deep") from None
    if data.count(b"[") + data.count(b"{") > MOST_NESTED and (depth := depth_of(value)) > MOST_NESTED:
        raise BodyError("", f"must be nested at most {MOST_NESTED} deep, got {depth}")
    if not isinstance(value, dict):
        raise BodyError("", f"must be a JSON object, got {shown(value)}")
    if _may_be_broken(data) and not is_unicode(value):
        raise BodyError("", "has half of a surrogate pair, which is no character")
    return value


def _may_be_broken(data: bytes) -> bool:
    if any(sign in data for sign in _SURROGATES):
        return True
    return b"\\" in data and any(escape in data for escape in _ESCAPES)


def header_text(headers: Mapping[str, str], name: str) -> str:
    """Return a header that a request keeps; empty where it is absent.

    Raises:
        BodyError: it is no text. Headers may have any bytes.
    """
    value = headers.get(name, "")
    if not is_unicode(value):
        raise BodyError(name, "must be UTF-8")
    return value


def read_request(body: Mapping[str, Any], headers: Mapping[str, str], *, chat: bool) -> Asked:
    """Translate a body.

    Fields that nobody knows are left out and named in the answer. Fields that would change the answer and are not
    supported are errors.

    Raises:
        BodyError: names the field that can't be served as written.
    """
    fields = Fields("", body, ignore_unknown=True)
    stream = fields.flag("stream")
    usage, running_usage = _stream_options(fields, stream=stream)
    token_ids, tokens_as_ids = fields.flag("return_token_ids"), fields.flag("return_tokens_as_token_ids")
    tier = _tier(fields)
    cache_key = fields.take("prompt_cache_key")
    request = read_body(fields, chat=chat)
    if chat and stream and request.sampling.prompt_logprobs is not None:
        raise fields.wrong("prompt_logprobs", "must be absent where stream is true")
    session = request.session_id or header_text(headers, SESSION)
    key = header_text(headers, KEY)
    options = GenerateOptions(
        request_class=TIERS.get(tier, RequestClass.STANDARD),
        idempotency_key=key,
        session_id=session or (cache_key if isinstance(cache_key, str) else ""),
        **chat_fields(request.options),
    )
    try:
        generate = request_to_proto(request.model, request.prompt, request.sampling, options)
    except BodyError:
        raise
    except (TypeError, ValueError) as error:
        raise BodyError("", str(error)) from None
    receipt = headers.get(RECEIPT, "").lower() in ("1", "true", "yes")
    received = _received(headers, stream=stream, keyed=bool(key))
    return Asked(
        generate=generate,
        stream=stream,
        usage=usage or receipt,
        running_usage=running_usage,
        token_ids=token_ids,
        tokens_as_ids=tokens_as_ids,
        tier=tier_name(tier),
        receipt=receipt,
        received=received,
        ignored=request.ignored,
        names=_names(body, request, headers, options.session_id, chat=chat),
    )


def _names(
    body: Mapping[str, Any], request: Body, headers: Mapping[str, str], session: str, *, chat: bool
) -> Mapping[str, str]:
    names = {}
    if chat and body.get(_NEWER) is not None:
        names["sampling.max_tokens"] = _NEWER
    if chat and body.get("reasoning") and not body.get("reasoning_effort"):
        # Our field has this name too, and would be told as `reasoning_effort`.
        names["reasoning.effort"] = "reasoning.effort"
    if request.constraint not in ("", "response_format"):
        names |= constraint_names(request.constraint)
    if session and not request.session_id:
        names["session_id"] = SESSION if headers.get(SESSION) else "prompt_cache_key"
    # Most requests share a mapping, for it lives as long as their streams.
    shared = CHAT_NAMES if chat else _TEXT_NAMES
    return {**shared, **names} if names else shared


def constraint_names(constraint: str) -> Mapping[str, str]:
    """Return the paths of a constraint on the output, and the names that a body has for them, as `name_in` reads them.

    Args:
        constraint: name of its field in the body.
    """
    values = f"{constraint}.choice" if constraint == "structured_outputs" else constraint
    return {"sampling.structured_output.choice.values": values, "sampling.structured_output*": constraint}


def as_written(error: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError:
    """Return an error of the services with the names that a body has for their fields."""
    return InvalidRequestError([replace(each, field=name_in(names, each.field)) for each in error.violations])


def as_chat_has_it(error: InvalidRequestError, names: Mapping[str, str]) -> WrittenError:
    """Return an error of the services with the names of a chat. Some are also those of other fields of ours."""
    return WrittenError(
        [replace(each, field=names.get(each.field) or in_body(name_in(names, each.field))) for each in error.violations]
    )


def name_in(names: Mapping[str, str], field: str) -> str:
    """Return the name that a body has for one of our fields.

    Args:
        names: paths of our fields, and the names. A path may be that of a list, whose index stays; `*` at its end
            stands for any rest.
        field: path of the field; it comes back where nothing is known of it.
    """
    for ours, written in names.items():
        if ours.endswith("*"):
            if field.startswith(ours[:-1]):
                return written
        elif field == ours:
            return written
        elif field.startswith(f"{ours}[") and (index := _INDEX.match(field, len(ours))):
            return written + index[0]
    return field


def _stream_options(fields: Fields, *, stream: bool) -> tuple[bool, bool]:
    options = fields.object("stream_options")
    if options is None:
        return False, False
    if not stream:
        raise fields.wrong("stream_options", "must be absent where stream is not true")
    found = options.flag("include_usage"), options.flag("continuous_usage_stats")
    fields.also_ignored(options.leftovers())
    return found


def page_limit(query: Mapping[str, str], default: int, most: int) -> int:
    """Read how many entries a page of a list has.

    Raises:
        BodyError: it is out of range.
    """
    text = query.get("limit", str(default))
    if not _LIMIT.fullmatch(text) or not 1 <= int(text) <= most:
        raise BodyError("limit", f"must be at least 1 and at most {most}, got {shown(text)}")
    return int(text)


def read_metadata(fields: Fields) -> dict[str, str] | None:
    """Read what a client notes beside a request, within OpenAI's bounds; None where there is nothing.

    Raises:
        BodyError: it is outside.
    """
    value = fields.take("metadata")
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > _MAX_PAIRS:
        raise fields.wrong("metadata", f"must be an object of at most {_MAX_PAIRS} pairs, got {shown(value)}")
    for name, each in value.items():
        if len(name) > _MAX_NAME or not isinstance(each, str) or len(each) > _MAX_VALUE:
            bounds = f"names of at most {_MAX_NAME} characters and texts of at most {_MAX_VALUE}"
            raise fields.wrong("metadata", f"must have {bounds}, got {shown({name: each})}")
    return value


def tier_class(fields: Fields, *standard: str) -> RequestClass:
    """Read the class of a request from its tier. `standard` are more names of STANDARD, which one API has.

    Raises:
        BodyError: there is no such tier.
    """
    return TIERS.get(_tier(fields, *standard), RequestClass.STANDARD)


def tier_name(tier: str) -> str:
    """Return the tier that an answer names, as OpenAI's does: one for all names of a class; empty for none."""
    return _SHOWN_TIERS.get(TIERS[tier], tier) if tier in TIERS else tier


def _tier(fields: Fields, *standard: str) -> str:
    tier, known = fields.text("service_tier"), (*TIERS, *standard)
    if tier and tier not in known:
        raise fields.wrong("service_tier", f"must be one of {', '.join(known)}, got {shown(tier)}")
    return tier


def _received(headers: Mapping[str, str], *, stream: bool, keyed: bool) -> tuple[int, ...] | None:
    """Read the id of the last event that a client got, as a browser's EventSource sends it."""
    last = headers.get(LAST_EVENT, "")
    if not last:
        return None
    if not stream or not keyed:
        raise BodyError(LAST_EVENT, "goes with a stream and an Idempotency-Key only")
    counts = last.split(",")
    if len(last) > _LONGEST_ID or not all(each.isascii() and each.isdigit() for each in counts):
        raise BodyError(LAST_EVENT, f"must be the id of an event of this stream, got {shown(last)}")
    return tuple(min(int(each), UINT32[1]) for each in counts)


def count_of(generate: api.GenerateRequest) -> api.CountTokensRequest:
    """Return the request for the number of tokens of a prompt, with all that changes what a chat template shows."""
    count = api.CountTokensRequest(model=generate.model, prompt=generate.prompt)
    if generate.HasField("tool_choice"):
        count.tool_choice.CopyFrom(generate.tool_choice)
    if generate.HasField("reasoning"):
        count.reasoning.CopyFrom(generate.reasoning)
    return count
