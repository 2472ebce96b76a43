"""Bodies of requests for vectors, classes and scores, as OpenAI and vLLM's server name their fields. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock.models import RequestClass
from penstock.v1 import embeddings_pb2 as api
from penstock.values.embeddings import Embeddings, Input, PoolingOptions, inputs_to_proto, unpack
from penstock.values.fields import build
from penstock.values.objects import INT64, POSITIVE, UINT32, BodyError, Fields, is_int, shown, within
from penstock.values.unsupported import Unsupported

EMBEDDINGS_URL = "/v1/embeddings"
Encoding = Literal["float", "base64"]

_NEVER = Unsupported(always_neutral=True)
_ALWAYS = Unsupported()
_KNOWN: Mapping[str, Unsupported] = {
    "user": _NEVER,
    "safety_identifier": _NEVER,
    "metadata": _NEVER,
    "request_id": _NEVER,
    "priority": Unsupported((0,), changes_answers=False),
    "cache_salt": _NEVER,
    "padding": Unsupported(("do_not_pad",)),
    "add_special_tokens": Unsupported((True,)),
    "embed_dtype": Unsupported(("float32",)),
    "endianness": Unsupported(("native", "little")),
    "mm_processor_kwargs": Unsupported(({},)),
    "messages": _ALWAYS,
    "instruction": Unsupported(("",)),
    "chat_template": _ALWAYS,
    "chat_template_kwargs": Unsupported(({},)),
    "max_tokens_per_query": Unsupported((0,)),
    "max_tokens_per_doc": Unsupported((0,)),
    "max_chunks_per_doc": _ALWAYS,
    "rank_fields": _ALWAYS,
    "normalize": _ALWAYS,
    "task": _ALWAYS,
}
"""Fields without effect, or with one that Penstock does not have."""
_QUERIES = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
"""Pairs of names that vLLM's server takes for queries and documents."""
_ALONE: Mapping[str, str] = {"inputs[0].tokens.ids": "input", "inputs[0]*": "input"}
_MANY: Mapping[str, str] = {}
"""Names of the only input of a body, and of those in a list."""


@dataclass(frozen=True, slots=True)
class EmbedBody:
    """Body of a request for vectors."""

    request: api.EmbedRequest
    encoding: Encoding
    inputs: list[Input]
    dimensions: int | None
    normalize: bool | None
    options: PoolingOptions
    ignored: tuple[str, ...]
    """Fields that nobody knows, which were left out."""
    names: Mapping[str, str]
    """As those of `ScoreBody`."""

    @property
    def repeated(self) -> str:
        """What the writer of an answer must know of the request, as the text of a JSON object; empty for nothing."""
        return "" if self.encoding == "float" else json.dumps({"encoding_format": self.encoding})


@dataclass(frozen=True, slots=True)
class ClassifyBody:
    """Body of a request for classes."""

    request: api.ClassifyRequest
    ignored: tuple[str, ...]
    names: Mapping[str, str]
    """As those of `ScoreBody`."""


@dataclass(frozen=True, slots=True)
class ScoreBody:
    """Body of a request for scores, or for a ranking."""

    request: api.ScoreRequest
    top: int
    """Most documents of a ranking; 0 for all."""
    documents: tuple[str, ...]
    """Texts that a ranking repeats."""
    ignored: tuple[str, ...]
    names: Mapping[str, str]
    """Fields of the request, and what the body calls them; `*` stands for any rest of a path."""


def read_embed(fields: Fields, request_class: RequestClass = RequestClass.STANDARD) -> EmbedBody:
    """Read the body of a request for vectors.

    Raises:
        BodyError: a field can't be served as written; names it.
    """
    encoding = fields.text("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise fields.wrong("encoding_format", f"must be float or base64, got {shown(encoding)}")
    model, (inputs, names), dimensions = _model(fields), _inputs(fields), fields.count("dimensions", POSITIVE)
    normalize, options = _activation(fields), _options(fields, request_class)
    request = _built(
        api.EmbedRequest,
        model=model,
        inputs=_wire(fields, "input", inputs),
        dimensions=dimensions,
        normalize=normalize,
        options=options.to_proto(),
    )
    form: Encoding = "base64" if encoding == "base64" else "float"
    return EmbedBody(request, form, inputs, dimensions, normalize, options, fields.leftovers(_KNOWN), names)


def read_classify(fields: Fields, request_class: RequestClass = RequestClass.STANDARD) -> ClassifyBody:
    """Read the body of a request for classes, as `read_embed`."""
    model, (inputs, names) = _model(fields), _inputs(fields)
    request = _built(
        api.ClassifyRequest,
        model=model,
        inputs=_wire(fields, "input", inputs),
        probabilities=_activation(fields),
        options=_options(fields, request_class).to_proto(),
    )
    return ClassifyBody(request, fields.leftovers(_KNOWN), names)


def read_score(fields: Fields, request_class: RequestClass = RequestClass.STANDARD) -> ScoreBody:
    """Read the body of a request for scores, as `read_embed`."""
    found = {name: fields.take(name) for name in dict.fromkeys(name for pair in _QUERIES for name in pair)}
    names = max(_QUERIES, key=lambda pair: sum(found[name] is not None for name in pair))
    given = [name for name, value in found.items() if value is not None]
    if others := [name for name in given if name not in names]:
        beside = " and ".join(name for name in given if name in names)
        raise fields.wrong(others[0], f"must be absent beside {beside}")
    texts = [_texts(fields, name, found[name]) for name in names]
    request = _built(
        api.ScoreRequest,
        model=_model(fields),
        queries=_wire(fields, names[0], texts[0]),
        documents=_wire(fields, names[1], texts[1]),
        probabilities=_activation(fields),
        options=_options(fields, request_class).to_proto(),
    )
    written = {}
    for ours, name in zip(("queries", "documents"), names, strict=True):
        # A text that is no list has no index.
        written[f"{ours}*" if isinstance(found[name], str) else ours] = name
    return ScoreBody(request, 0, tuple(texts[1]), fields.leftovers(_KNOWN), written)


def read_rerank(fields: Fields, request_class: RequestClass = RequestClass.STANDARD) -> ScoreBody:
    """Read the body of a request for a ranking, as `read_embed`."""
    query = fields.text("query")
    if not query:
        raise fields.wrong("query", "is required")
    texts = _texts(fields, "documents", fields.take("documents"))
    top = fields.count("top_n") or 0
    repeats = fields.take("return_documents") is not False
    request = _built(
        api.ScoreRequest,
        model=_model(fields),
        queries=_wire(fields, "query", [query]),
        documents=_wire(fields, "documents", texts),
        probabilities=_activation(fields),
        options=_options(fields, request_class).to_proto(),
    )
    repeated = tuple(texts) if repeats else ()
    return ScoreBody(request, top, repeated, fields.leftovers(_KNOWN), {"queries*": "query"})


def embedding_value(vector: bytes, encoding: Encoding) -> list[float] | str:
    """Return a vector as the body of an answer has it."""
    return base64.b64encode(vector).decode() if encoding == "base64" else list(unpack(vector))


def embeddings_object(found: Embeddings, *, model: str, created: int) -> dict[str, Any]:
    """Return the body of an answer with vectors as numbers. `created` is in seconds since 1970."""
    return {
        "id": f"embd-{found.request_id}",
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": list(vector)}
            for index, vector in enumerate(found.vectors)
        ],
        "created": created,
        "model": model,
        "usage": prompt_usage(found.usage.prompt_tokens),
    }


def prompt_usage(tokens: int) -> dict[str, int]:
    """Return the usage of a request without output tokens."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _built(kind: Any, **values: Any) -> Any:
    try:
        return build(kind, **values)
    except (TypeError, ValueError) as error:
        raise BodyError("", str(error)) from None


def _model(fields: Fields) -> str:
    model = fields.text("model")
    if not model:
        raise fields.wrong("model", "is required")
    return model


def _activation(fields: Fields) -> bool | None:
    value = fields.take("use_activation")
    if value is not None and not isinstance(value, bool):
        raise fields.wrong("use_activation", f"must be true or false, got {shown(value)}")
    return value


def _options(fields: Fields, request_class: RequestClass) -> PoolingOptions:
    most = fields.count("truncate_prompt_tokens", INT64)
    side = fields.text("truncation_side")
    if side not in ("", "left", "right"):
        raise fields.wrong("truncation_side", f"must be left or right, got {shown(side)}")
    if most is not None and (most == 0 or not -1 <= most <= UINT32[1]):
        limit = f"at most {UINT32[1]}" if most > 0 else "-1 for the model's context, or at least 1"
        raise fields.wrong("truncate_prompt_tokens", f"must be {limit}, got {most}")
    # A side alone cuts nothing, as in vLLM's server.
    return PoolingOptions(
        truncate=most is not None,
        truncate_to=most if most is not None and most > 0 else None,
        truncate_beginning=most is not None and side == "left",
        request_class=request_class,
    )


def _inputs(fields: Fields) -> tuple[list[Input], Mapping[str, str]]:
    """Return all inputs, and what the body calls them."""
    value = fields.take("input")
    if isinstance(value, str):
        return [value], _ALONE
    if not isinstance(value, list) or not value:
        problem = f"must be text, token ids, or a list of either with at least 1 entry, got {shown(value)}"
        raise fields.wrong("input", problem)
    if all(is_int(each) for each in value):
        _check_ids(fields, "input", value)
        return [value], _ALONE
    for index, each in enumerate(value):
        ids = isinstance(each, list) and each and all(is_int(token) for token in each)
        if ids:
            _check_ids(fields, f"input[{index}]", each)
        elif not isinstance(each, str):
            raise fields.wrong(f"input[{index}]", f"must be text or token ids, got {shown(each)}")
    return value, _MANY


def _check_ids(fields: Fields, name: str, ids: Sequence[int]) -> None:
    if min(ids) < UINT32[0] or max(ids) > UINT32[1]:
        for index, token in enumerate(ids):
            within(fields, f"{name}[{index}]", token, UINT32)


def _texts(fields: Fields, name: str, value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise fields.wrong(name, f"must be text, or a list of texts with at least 1 entry, got {shown(value)}")
    found = []
    for index, each in enumerate(value):
        text = each.get("text") if isinstance(each, dict) else each
        if not isinstance(text, str):
            raise fields.wrong(f"{name}[{index}]", f"must be text, got {shown(each)}")
        found.append(text)
    return found


def _wire(fields: Fields, name: str, inputs: Sequence[Input]) -> list[api.PoolingInput]:
    try:
        return inputs_to_proto(name, inputs)
    except (TypeError, ValueError) as error:
        field, _, problem = str(error).partition(": ")
        raise fields.wrong(field, problem) from None


def read_embed_line(fields: Fields) -> EmbedBody:
    """Read the body of a line of a batch file.

    Raises:
        BodyError: a field can't be served as written; names it.
    """
    body = read_embed(fields)
    if body.encoding != "float":
        raise fields.wrong("encoding_format", f"must be float in a batch, got {shown(body.encoding)}")
    return body
