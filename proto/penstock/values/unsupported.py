"""Fields that Penstock does not support: which values change nothing, and which fields change answers.

A value that changes nothing is accepted. Any other value is an error. The caller may have it left out, but never where
answers would differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field that is not supported. Null always changes nothing."""

    neutral: tuple[object, ...] = ()
    """Values that change nothing."""
    always_neutral: bool = False
    """Whether no value changes anything."""
    changes_answers: bool = True
    """Whether other values change answers. Then the field is never left out."""
    instead: str = ""
    """What a caller can do instead."""

    def accepts(self, value: object) -> bool:
        """Return whether a value changes nothing."""
        return value is None or self.always_neutral or any(_same(value, each) for each in self.neutral)


def _same(value: object, other: object) -> bool:
    # Python takes true for 1. In JSON they differ, and 1 and 1.0 do not.
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def _when(*neutral: object, changes_answers: bool = True) -> Unsupported:
    return Unsupported(neutral, changes_answers=changes_answers)


def _of_chats(*neutral: object) -> Unsupported:
    return Unsupported(neutral, instead="only requests with messages take it")


UNKNOWN = Unsupported(changes_answers=False)
"""A field that nobody knows. What it does can't be told, so the caller decides."""
_NEVER = Unsupported(always_neutral=True)
_ALWAYS = Unsupported()
_OFF = _when(False)
_EMPTY = _when([], {})
_RESPONSES = Unsupported(("",), instead="only /v1/responses takes it")

_BODY: Mapping[str, Unsupported] = {
    # Names and hints for the operator of a server. A job has one answer per item and no stream.
    "user": _NEVER,
    "safety_identifier": _NEVER,
    "metadata": _NEVER,
    "prompt_cache_key": _NEVER,
    "stream_options": _NEVER,
    "stream_interval": _NEVER,
    # They only make an answer faster, or say where it is kept.
    "prediction": _NEVER,
    "prompt_cache_retention": _when("in_memory", "in-memory", changes_answers=False),
    # A wish, which agents send by themselves. No template or engine knows it.
    "verbosity": _when("medium", changes_answers=False),
    "service_tier": _when("auto", "default", changes_answers=False),
    "store": _when(False, changes_answers=False),
    "priority": _when(0, changes_answers=False),
    "request_id": Unsupported(changes_answers=False),
    "cache_salt": Unsupported(changes_answers=False),
    "kv_transfer_params": _when({}, changes_answers=False),
    "ec_transfer_params": _when({}, changes_answers=False),
    # Parts of an answer.
    "stream": _when(False, changes_answers=False),
    "return_token_ids": _when(False, changes_answers=False),
    "return_token_offsets": _when(False, changes_answers=False),
    "return_prompt_text": _when(False, changes_answers=False),
    "return_tokens_as_token_ids": _when(False, changes_answers=False),
    "routed_experts_prompt_start": _NEVER,
    "mm_payload": _NEVER,
    "return_mm_kwargs": _NEVER,
    "logprob_token_ids": _when([]),
    "echo": _OFF,
    "suffix": _when(""),
    # Names of the Responses API. An answer without them would be one to another question.
    "instructions": _RESPONSES,
    "previous_response_id": _RESPONSES,
    "conversation": _RESPONSES,
    "max_output_tokens": Unsupported(instead="give max_tokens"),
    # Older names of tools. Without any, a choice among them is empty.
    "functions": Unsupported(([],), instead="give tools"),
    "function_call": Unsupported(("none", "auto"), instead="give tool_choice"),
    "web_search_options": _ALWAYS,
    # Other names of what templates and models that reason get.
    "thinking_token_budget": _when(-1),
    "chat_template": _ALWAYS,
    "add_generation_prompt": _when(True),
    "mm_processor_kwargs": _when({}),
    "media_io_kwargs": _when({}),
    "modalities": _when(["text"]),
    "audio": _ALWAYS,
    "prompt_embeds": _ALWAYS,
    # Sampling of vLLM's server that the API does not have.
    "use_beam_search": _OFF,
    "length_penalty": _when(1),
    "include_stop_str_in_output": _OFF,
    "skip_special_tokens": _when(True),
    "spaces_between_special_tokens": _when(True),
    "truncate_prompt_tokens": _ALWAYS,
    "truncation_side": _NEVER,
    "allowed_token_ids": _ALWAYS,
    "bad_words": _when([]),
    "repetition_detection": _ALWAYS,
    "watermarking": _OFF,
    "vllm_xargs": _when({}),
    "guided_decoding_backend": _ALWAYS,
    "guided_whitespace_pattern": _ALWAYS,
}

CHAT: Mapping[str, Unsupported] = {**_BODY, "add_special_tokens": _OFF}
"""Fields of a chat's body. Its template adds special tokens."""
COMPLETION: Mapping[str, Unsupported] = {
    **_BODY,
    "add_special_tokens": _when(True),
    "max_completion_tokens": Unsupported(instead="give max_tokens"),
    "top_logprobs": Unsupported((0,), instead="give logprobs"),
    "tools": _of_chats([]),
    "tool_choice": _of_chats("none", "auto"),
    "parallel_tool_calls": _NEVER,
    "reasoning": _of_chats([], {}),
    "thinking": _of_chats([], {}),
    "enable_thinking": _of_chats(False),
    "reasoning_effort": _of_chats(),
    "include_reasoning": _of_chats(True),
    "chat_template_kwargs": _of_chats({}),
    "documents": _of_chats([]),
    "continue_final_message": _of_chats(False),
}
"""Fields of a completion's body. Its tokenizer adds special tokens."""

MESSAGE: Mapping[str, Unsupported] = {
    "id": _NEVER,
    "annotations": Unsupported(([],), changes_answers=False),
    # What OpenAI's client read out of the text.
    "parsed": _NEVER,
    "function_call": Unsupported(([], {}), instead="give tool_calls"),
    "tools": _when([]),
    "refusal": _when(""),
    "audio": _EMPTY,
    "prefix": _OFF,
    "partial": _OFF,
}
"""Fields of a message."""

TEXT_PART: Mapping[str, Unsupported] = {
    "annotations": Unsupported(([],), changes_answers=False),
    "cache_control": Unsupported(changes_answers=False),
}
"""Fields of a text part of a message."""
IMAGE_PART: Mapping[str, Unsupported] = {
    # The model's own processor chooses the resolution.
    "detail": _NEVER,
    "cache_control": Unsupported(changes_answers=False),
}
"""Fields of an image part of a message."""
IMAGE_URL: Mapping[str, Unsupported] = {"detail": _NEVER}
"""Fields of the object with an image's URL."""

TOOL_CALL: Mapping[str, Unsupported] = {
    # Streams number their calls.
    "index": _NEVER,
}
"""Fields of a tool call in a message."""
CALL_FUNCTION: Mapping[str, Unsupported] = {
    # What OpenAI's client read out of the arguments.
    "parsed_arguments": _NEVER,
}
"""Fields of the function of a tool call."""
TOOL: Mapping[str, Unsupported] = {
    "cache_control": Unsupported(changes_answers=False),
    "defer_loading": _when(False),
}
"""Fields of a tool."""
TOOL_FUNCTION: Mapping[str, Unsupported] = {"defer_loading": _when(False)}
"""Fields of the function of a tool."""

STRUCTURED_OUTPUTS: Mapping[str, Unsupported] = {
    "disable_any_whitespace": _OFF,
    "disable_additional_properties": _OFF,
    "whitespace_pattern": _ALWAYS,
}
"""Fields of vLLM's `structured_outputs` beside the constraint."""
