"""Validation of requests: well formed, and servable by the model. Pure: messages in, values or one error out."""

from router.validation.resolve import check_generates, check_received, choice_sampling, resolve
from router.validation.schema import schema_problem
from router.validation.validation import (
    check_cancel,
    check_count,
    check_detokenize,
    check_get_model,
    check_request,
    check_stream,
)
from router.validation.values import (
    CancelTarget,
    ChatPrompt,
    CheckedRequest,
    Image,
    Message,
    Prompt,
    RequestLimits,
    ResumePoint,
    TextPrompt,
    TokenPrompt,
)

__all__ = [
    "CancelTarget",
    "ChatPrompt",
    "CheckedRequest",
    "Image",
    "Message",
    "Prompt",
    "RequestLimits",
    "ResumePoint",
    "TextPrompt",
    "TokenPrompt",
    "check_cancel",
    "check_count",
    "check_detokenize",
    "check_generates",
    "check_get_model",
    "check_received",
    "check_request",
    "check_stream",
    "choice_sampling",
    "resolve",
    "schema_problem",
]
