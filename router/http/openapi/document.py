"""The OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router.http.openapi.schemas import SCHEMAS, ref

_GENERATION = ("Generation", "Answers to conversations and texts.")
_FILES = ("Files and batches", "Work without a person waiting for it.")
_MODELS = ("Models", "What the cluster serves.")
_VECTORS = ("Embeddings", "Vectors, scores and classes of texts.")
_REGISTRY = ("Registry", "Tenants, keys, adapters and aliases, which change while the cluster runs.")
_ANNOUNCED = ("Announced load", "Load that a tenant will send, so that replicas are there before it comes.")
_OTHER = ("Server", "State of the router; no key is needed.")
_TAGS = (_GENERATION, _VECTORS, _MODELS, _FILES, _ANNOUNCED, _REGISTRY, _OTHER)

_HEADERS = (
    ("Idempotency-Key", "Name of the request. The same request under the same name joins the one that runs."),
    ("X-Session-ID", "Name of a group of requests that share a long prefix."),
    ("x-request-id", "The caller's own id of the request, which comes back."),
)
_STATUSES = {
    "400": "A field is wrong; `param` names it.",
    "401": "The key is missing or unknown.",
    "403": "The key may not do this.",
    "404": "No such model, file, batch or response.",
    "409": "The key of the request belongs to another request.",
    "412": "The entry of the registry does not have the version that was expected.",
    "413": "The body is too large.",
    "429": "A quota or the line is full; `retry-after` tells when to come back.",
    "503": "No replica can serve it now.",
    "504": "The deadline passed.",
}
# Path, method, tag, what it does, schema of the body, schema of the answer.
_OPERATIONS: tuple[tuple[str, str, tuple[str, str], str, str, str], ...] = (
    ("/v1/chat/completions", "post", _GENERATION, "Answer a conversation", "ChatRequest", "Chat"),
    ("/v1/completions", "post", _GENERATION, "Continue a text", "CompletionRequest", "Completion"),
    ("/v1/responses", "post", _GENERATION, "Create a response", "ResponseRequest", "Object"),
    ("/v1/responses/input_tokens", "post", _GENERATION, "Count the tokens of an input", "ResponseRequest", "Object"),
    ("/v1/responses/{response}", "get", _GENERATION, "Retrieve a response, or the rest of its stream", "", "Object"),
    ("/v1/responses/{response}", "delete", _GENERATION, "Delete a response", "", "Object"),
    ("/v1/responses/{response}/cancel", "post", _GENERATION, "Cancel a background response", "", "Object"),
    ("/v1/responses/{response}/input_items", "get", _GENERATION, "List the input of a response", "", "Page"),
    ("/v1/messages", "post", _GENERATION, "Answer a conversation in Anthropic's form", "MessagesRequest", "Object"),
    ("/v1/messages/count_tokens", "post", _GENERATION, "Count the tokens of a conversation", "CountRequest", "Object"),
    ("/v1/embeddings", "post", _VECTORS, "Return vectors of texts", "EmbeddingRequest", "Object"),
    ("/v1/rerank", "post", _VECTORS, "Sort documents by their closeness to a query", "PairRequest", "Object"),
    ("/v2/rerank", "post", _VECTORS, "Sort documents by their closeness to a query", "PairRequest", "Object"),
    ("/rerank", "post", _VECTORS, "Sort documents by their closeness to a query", "PairRequest", "Object"),
    ("/v1/score", "post", _VECTORS, "Score pairs of texts", "PairRequest", "Object"),
    ("/score", "post", _VECTORS, "Score pairs of texts", "PairRequest", "Object"),
    ("/classify", "post", _VECTORS, "Return classes of texts", "PairRequest", "Object"),
    ("/v1/classify", "post", _VECTORS, "Return classes of texts", "PairRequest", "Object"),
    ("/v1/models", "get", _MODELS, "List the models", "", "Models"),
    ("/v1/models/{model}", "get", _MODELS, "Describe a model", "", "Model"),
    ("/v1/whoami", "get", _MODELS, "Tell the caller who it is and what it may use", "", "Caller"),
    ("/v1/load_lora_adapter", "post", _MODELS, "Load a LoRA adapter on every replica", "LoadAdapter", ""),
    ("/v1/unload_lora_adapter", "post", _MODELS, "Unload a LoRA adapter everywhere", "UnloadAdapter", ""),
    ("/v1/announcements", "get", _ANNOUNCED, "List what is announced", "", "Announcements"),
    ("/v1/announcements", "post", _ANNOUNCED, "Announce load", "NewAnnouncement", "Announcement"),
    ("/v1/announcements/{announcement}", "delete", _ANNOUNCED, "Withdraw an announcement", "", "Object"),
    ("/v1/registry", "get", _REGISTRY, "List all entries", "", "RegistryPage"),
    ("/v1/registry", "post", _REGISTRY, "Make several changes, all or none", "RegistryEdits", "RegistryResult"),
    ("/v1/registry/history", "get", _REGISTRY, "List changes, newest first", "", "Page"),
    ("/v1/registry/keys", "post", _REGISTRY, "Make an API key, which is shown only here", "NewKey", "CreatedKey"),
    ("/v1/registry/{kind}", "get", _REGISTRY, "List the entries of a kind", "", "RegistryPage"),
    ("/v1/registry/{kind}/{name}", "get", _REGISTRY, "Return an entry", "", "RegistryEntry"),
    ("/v1/registry/{kind}/{name}", "put", _REGISTRY, "Make or change an entry", "Object", "RegistryResult"),
    ("/v1/registry/{kind}/{name}", "delete", _REGISTRY, "Delete an entry", "", "RegistryResult"),
    ("/tokenize", "post", _MODELS, "Return the tokens of a prompt", "TokenizeRequest", "Object"),
    ("/detokenize", "post", _MODELS, "Return the text of tokens", "DetokenizeRequest", "Object"),
    ("/tokenizer_info", "get", _MODELS, "Describe the tokenizer", "", "Object"),
    ("/v1/files", "post", _FILES, "Upload a file", "Upload", "Object"),
    ("/v1/files", "get", _FILES, "List the files", "", "Page"),
    ("/v1/files/{file}", "get", _FILES, "Describe a file", "", "Object"),
    ("/v1/files/{file}", "delete", _FILES, "Delete a file", "", "Object"),
    ("/v1/files/{file}/content", "get", _FILES, "Return a file's content", "", ""),
    ("/v1/batches", "post", _FILES, "Start a batch", "BatchRequest", "Object"),
    ("/v1/batches", "get", _FILES, "List the batches", "", "Page"),
    ("/v1/batches/{batch}", "get", _FILES, "Describe a batch", "", "Object"),
    ("/v1/batches/{batch}/cancel", "post", _FILES, "Cancel a batch", "", "Object"),
    ("/health", "get", _OTHER, "Tell whether the router runs", "", ""),
    ("/ping", "get", _OTHER, "Tell whether the router runs", "", ""),
    ("/version", "get", _OTHER, "Return the version", "", "Object"),
    ("/openapi.json", "get", _OTHER, "Return this document", "", "Object"),
    ("/docs", "get", _OTHER, "Show a page to try the API", "", ""),
)
_OF_TENANTS = {("/v1/announcements", "get"), ("/v1/announcements/{announcement}", "delete")}
_LISTS = {("/v1/registry", "get"), ("/v1/registry/{kind}", "get")}
_HISTORY = {("/v1/registry/history", "get")}
_CONDITIONAL = {("/v1/registry/{kind}/{name}", "put"), ("/v1/registry/{kind}/{name}", "delete")}
_EDITS = {("/v1/registry", "post"), *_CONDITIONAL}
# Name, type, meaning, operations.
_QUERIES: tuple[tuple[str, str, str, set[tuple[str, str]]], ...] = (
    ("model", "string", "Name of the model; by default the only one.", _OF_TENANTS),
    ("tenant", "string", "Tenant whose announcements are meant; by default the caller's own.", _OF_TENANTS),
    (
        "all_tenants",
        "boolean",
        "Whether those of all tenants are listed. For operators.",
        {("/v1/announcements", "get")},
    ),
    ("limit", "integer", "Most of them to return.", _LISTS | _HISTORY),
    ("after", "string", "`last_id` of the page before.", _LISTS),
    (
        "hashes",
        "boolean",
        "Whether the hashes of keys and the secrets of pools are returned, for a backup. For admins.",
        _LISTS,
    ),
    ("kind", "string", "Kind of the entries; by default all.", _HISTORY),
    ("name", "string", "Name of the entries; by default all.", _HISTORY),
    ("before", "integer", "Number of a change; only older ones are returned.", _HISTORY),
    ("dry_run", "boolean", "Whether only the differences are returned, and nothing is changed.", _EDITS),
    ("wait", "number", "Longest wait in seconds until every router and replica knows it; 5 by default.", _EDITS),
    ("force", "boolean", "Whether adapters are deleted although requests use them.", _EDITS),
    ("end_streams", "boolean", "Of a key: whether what it has begun ends too.", _CONDITIONAL),
)
_IF_MATCH = "ETag of the entry as it was read; 412 where it changed since. `If-None-Match: *` asks for a new one."
_TEXT = {"type": "string"}
_STREAMED = {"ChatRequest", "CompletionRequest", "ResponseRequest", "MessagesRequest"}


def document(version: str) -> dict[str, Any]:
    """Return the document of a router of this version."""
    paths: dict[str, Any] = {}
    for path, method, tag, summary, body, answer in _OPERATIONS:
        paths.setdefault(path, {})[method] = _operation((path, method), tag, summary, body, answer)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": version,
            "description": "Large language models behind a durable queue, in the forms of OpenAI and Anthropic.",
        },
        "tags": [{"name": name, "description": text} for name, text in _TAGS],
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(place: tuple[str, str], tag: tuple[str, str], summary: str, body: str, answer: str) -> dict[str, Any]:
    path, _ = place
    parts = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [
        {"name": part, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for part in parts
    ]
    found: dict[str, Any] = {"tags": [tag[0]], "summary": summary, "parameters": parameters}
    if tag is not _OTHER:
        found["security"] = [{"key": []}, {}]
    if body:
        kind = "multipart/form-data" if body == "Upload" else "application/json"
        found["requestBody"] = {"required": True, "content": {kind: {"schema": ref(body)}}}
        found["parameters"] += [
            {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
            for name, text in _HEADERS
            if body in _STREAMED
        ]
    found["parameters"] += [
        {"name": name, "in": "query", "description": text, "schema": {"type": kind}}
        for name, kind, text, of in _QUERIES
        if place in of
    ]
    if place in _CONDITIONAL:
        found["parameters"].append({"name": "If-Match", "in": "header", "description": _IF_MATCH, "schema": _TEXT})
    content: Mapping[str, Any] = {"application/json": {"schema": ref(answer)}} if answer else {}
    if body in _STREAMED:
        content = {**content, "text/event-stream": {"schema": {"type": "string"}}}
    found["responses"] = {"200": {"description": "The answer.", **({"content": content} if content else {})}}
    if tag is not _OTHER:
        error = ref("MessagesError" if path.startswith("/v1/messages") else "Error")
        found["responses"] |= {
            status: {"description": text, "content": {"application/json": {"schema": error}}}
            for status, text in _STATUSES.items()
        }
    return found
