"""Schemas of bodies and answers, as far as they are the API's own promise.

Bodies may have more fields: hints that change nothing are accepted, and unknown fields are named in the header
`x-penstock-ignored`. The manual of the router lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router.http.bodies import TIERS

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}


def ref(name: str) -> Schema:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def listed(items: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": items, **bounds}


def number(least: float | None = None, most: float | None = None, *, whole: bool = False) -> Schema:
    """Return the schema of a number; both bounds are inclusive."""
    bounds = {"minimum": least, "maximum": most}
    return {"type": "integer" if whole else "number", **{k: v for k, v in bounds.items() if v is not None}}


def maybe(schema: Schema) -> Schema:
    """Return a schema that also allows null, which is the same as absent."""
    return {"anyOf": [schema, {"type": "null"}]}


def fields(required: str, **properties: Schema) -> Schema:
    """Return the schema of an object; `required` are names with spaces between them."""
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return {**found, "required": required.split()} if required else found


def optional(**properties: Schema) -> dict[str, Schema]:
    """Return properties that may be null."""
    return {name: maybe(schema) for name, schema in properties.items()}


_COUNT = number(0, (1 << 32) - 1, whole=True)
_SAMPLING = optional(
    max_tokens=number(1, whole=True),
    temperature=number(0, 2),
    top_p=number(0, 1),
    top_k=number(-1, whole=True),
    min_p=number(0, 1),
    presence_penalty=number(-2, 2),
    frequency_penalty=number(-2, 2),
    repetition_penalty={**number(most=2), "exclusiveMinimum": 0},
    seed={"type": "integer"},
    n=number(1, 16, whole=True),
    stop={"anyOf": [TEXT, listed(TEXT, maxItems=16)]},
    stop_token_ids=listed(_COUNT, maxItems=64),
    min_tokens=number(0, whole=True),
    ignore_eos=FLAG,
    logit_bias={"type": "object", "additionalProperties": number(-100, 100)},
    stream=FLAG,
    stream_options=fields("", **optional(include_usage=FLAG, continuous_usage_stats=FLAG)),
    service_tier={"enum": list(TIERS)},
    return_token_ids=FLAG,
    response_format=fields("type", type={"enum": ["text", "json_object", "json_schema", "structural_tag"]}),
    structured_output_best_effort=FLAG,
)
_UNENFORCED = listed(fields("place keyword reason", place=TEXT, keyword=TEXT, reason=TEXT))
_IMAGE_URL: Schema = {
    "anyOf": [TEXT, fields("url", url=TEXT, detail=maybe(TEXT))],
    "description": "Content of an image as a data URL, such as data:image/png;base64,... Nothing is fetched.",
}
_MESSAGE = fields(
    "role",
    role=TEXT,
    content=maybe({"anyOf": [TEXT, listed(fields("type", type=TEXT, text=TEXT, image_url=_IMAGE_URL))]}),
    tool_calls=maybe(listed(ref("ToolCall"))),
    tool_call_id=maybe(TEXT),
    reasoning=maybe(TEXT),
)
_FUNCTION = fields("name", name=TEXT, description=maybe(TEXT), parameters=maybe(OBJECT), strict=maybe(FLAG))
_TOKENS = listed(_COUNT)
_PROMPT: Schema = {"anyOf": [TEXT, listed(TEXT), _TOKENS, listed(_TOKENS)]}
_PAGE = {"object": {"const": "list"}, "has_more": FLAG}

SCHEMAS: Mapping[str, Schema] = {
    "Error": fields(
        "error",
        error=fields("message type param code", message=TEXT, type=TEXT, param=maybe(TEXT), code=maybe(TEXT)),
    ),
    "MessagesError": fields(
        "type error", type={"const": "error"}, error=fields("type message", type=TEXT, message=TEXT)
    ),
    "ToolCall": fields(
        "function",
        id=TEXT,
        type={"const": "function"},
        function=fields("name arguments", name=TEXT, arguments=TEXT),
    ),
    "Usage": fields(
        "prompt_tokens completion_tokens total_tokens",
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        total_tokens=_COUNT,
    ),
    "ChatRequest": fields(
        "model messages",
        model=TEXT,
        messages=listed(_MESSAGE, minItems=1, maxItems=1024),
        max_completion_tokens=maybe(number(1, whole=True)),
        tools=maybe(listed(fields("type function", type={"const": "function"}, function=_FUNCTION), maxItems=128)),
        tool_choice=maybe({"anyOf": [{"enum": ["none", "auto", "required"]}, OBJECT]}),
        parallel_tool_calls=maybe(FLAG),
        reasoning_effort=maybe(TEXT),
        include_reasoning=maybe(FLAG),
        reasoning=maybe(OBJECT),
        chat_template_kwargs=maybe(OBJECT),
        logprobs=maybe(FLAG),
        top_logprobs=maybe(number(0, 20, whole=True)),
        **_SAMPLING,
    ),
    "Chat": fields(
        "id object created model choices usage",
        id=TEXT,
        object={"const": "chat.completion"},
        created=_COUNT,
        model=TEXT,
        choices=listed(
            fields(
                "index message finish_reason",
                index=_COUNT,
                message=fields("role content", role=TEXT, content=maybe(TEXT), tool_calls=listed(ref("ToolCall"))),
                finish_reason={"enum": ["stop", "length", "tool_calls"]},
            )
        ),
        usage=ref("Usage"),
        unenforced=_UNENFORCED,
    ),
    "CompletionRequest": fields(
        "model prompt",
        model=TEXT,
        prompt=_PROMPT,
        logprobs=maybe(number(0, 20, whole=True)),
        echo=maybe(FLAG),
        **_SAMPLING,
    ),
    "Completion": fields(
        "id object created model choices usage",
        id=TEXT,
        object={"const": "text_completion"},
        created=_COUNT,
        model=TEXT,
        choices=listed(
            fields("index text finish_reason", index=_COUNT, text=TEXT, finish_reason={"enum": ["stop", "length"]})
        ),
        usage=ref("Usage"),
        unenforced=_UNENFORCED,
    ),
    "Model": fields("id object created owned_by", id=TEXT, object={"const": "model"}, created=_COUNT, owned_by=TEXT),
    "Models": fields("object data", object={"const": "list"}, data=listed(ref("Model"))),
    "EmbeddingRequest": fields(
        "model input",
        model=TEXT,
        input=_PROMPT,
        encoding_format=maybe({"enum": ["float", "base64"]}),
        dimensions=maybe(number(1, whole=True)),
    ),
    "PairRequest": fields("model", model=TEXT),
    "ResponseRequest": fields(
        "model",
        model=TEXT,
        input=maybe({"anyOf": [TEXT, listed(OBJECT)]}),
        instructions=maybe(TEXT),
        previous_response_id=maybe(TEXT),
        background=maybe(FLAG),
        store=maybe(FLAG),
        stream=maybe(FLAG),
        structured_output_best_effort=maybe(FLAG),
    ),
    "MessagesRequest": fields(
        "model messages max_tokens",
        model=TEXT,
        max_tokens=number(1, whole=True),
        messages=listed(fields("role content", role=TEXT, content={"anyOf": [TEXT, listed(OBJECT)]}), minItems=1),
        system=maybe({"anyOf": [TEXT, listed(OBJECT)]}),
        stream=maybe(FLAG),
        structured_output_best_effort=maybe(FLAG),
    ),
    "CountRequest": fields("model messages", model=TEXT, messages=listed(OBJECT, minItems=1)),
    "TokenizeRequest": fields("model", model=TEXT, prompt=TEXT, messages=listed(_MESSAGE)),
    "DetokenizeRequest": fields("model tokens", model=TEXT, tokens=_TOKENS),
    "LoadAdapter": fields(
        "lora_name lora_path", lora_name=TEXT, lora_path=TEXT, model=TEXT, load_inplace={"type": "boolean"}
    ),
    "UnloadAdapter": fields("lora_name", lora_name=TEXT),
    "BatchRequest": fields(
        "input_file_id endpoint completion_window", input_file_id=TEXT, endpoint=TEXT, completion_window=TEXT
    ),
    "Upload": fields("file purpose", file={"type": "string", "format": "binary"}, purpose={"const": "batch"}),
    "Caller": fields(
        "object tenant role models classes credential",
        object={"const": "caller"},
        tenant=TEXT,
        role={"enum": ["user", "tenant_operator", "operator", "admin"]},
        models=listed(TEXT),
        classes=listed({"enum": ["interactive", "standard", "batch"]}),
        credential=fields("kind name expires_at", kind=TEXT, name=maybe(TEXT), expires_at=maybe(number(whole=True))),
    ),
    "NewAnnouncement": fields(
        "end",
        model=TEXT,
        id=TEXT,
        start=TEXT,
        end=TEXT,
        requests_per_second=number(0),
        tokens_per_second=number(0),
        prompt_tokens=_COUNT,
        output_tokens=_COUNT,
    ),
    "Announcement": fields(
        "object id model tenant start end requests_per_second tokens_per_second prompt_tokens output_tokens counts_for",
        object={"const": "announcement"},
        id=TEXT,
        model=TEXT,
        tenant=TEXT,
        start=number(whole=True),
        end=number(whole=True),
        requests_per_second=maybe(number(0)),
        tokens_per_second=maybe(number(0)),
        prompt_tokens=_COUNT,
        output_tokens=_COUNT,
        counts_for=number(0, 1),
    ),
    "Announcements": fields("object data", object={"const": "list"}, data=listed(ref("Announcement"))),
    "RegistryEntry": fields(
        "object kind name value version changed_at fixed",
        object={"const": "registry.entry"},
        kind={"enum": ["tenant", "key", "adapter", "alias"]},
        name=TEXT,
        value=OBJECT,
        version=_COUNT,
        changed_at=maybe(number(whole=True)),
        fixed=FLAG,
        replicas=listed(OBJECT),
    ),
    "RegistryPage": fields(
        "object data last_id has_more version",
        object={"const": "list"},
        data=listed(ref("RegistryEntry")),
        last_id=maybe(TEXT),
        has_more=FLAG,
        version=_COUNT,
    ),
    "RegistryEdits": fields(
        "edits",
        edits=listed(
            fields(
                "kind name",
                kind=TEXT,
                name=TEXT,
                value=maybe(OBJECT),
                expected_version=maybe(number(0, whole=True)),
                end_streams=maybe(FLAG),
            ),
            minItems=1,
        ),
    ),
    "RegistryResult": fields(
        "object differences version behind adapters",
        object={"const": "registry.edit"},
        differences=listed(OBJECT),
        version=_COUNT,
        behind=listed(TEXT),
        adapters=listed(OBJECT),
    ),
    "NewKey": fields(
        "",
        tenant=maybe(TEXT),
        role=maybe({"enum": ["user", "tenant_operator", "operator", "admin"]}),
        models=maybe(listed(TEXT)),
        classes=maybe(listed({"enum": ["interactive", "standard", "batch"]})),
        not_before=maybe({"type": "string", "format": "date-time"}),
        expires=maybe({"type": "string", "format": "date-time"}),
        replaces=maybe(TEXT),
        overlap_s=maybe(number(0)),
    ),
    "CreatedKey": fields(
        "object id key behind", object={"const": "registry.key"}, id=TEXT, key=TEXT, behind=listed(TEXT)
    ),
    "Object": OBJECT,
    "Page": fields("object data", data=listed(OBJECT), **_PAGE),
}
"""Schemas by the name that the document gives them."""
