"""Body of a request in OpenAI's format, for chats and completions, with the names that vLLM's server adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from penstock.batch.reasoning import read_reasoning
from penstock.batch.structural_tag import read_structural_tag, read_structural_tag_text
from penstock.models import ConstraintKind, StructuredOutput, ToolChoice, ToolMode
from penstock.values.chat import ChatOptions
from penstock.values.messages.message import Message, read_message
from penstock.values.objects import INT64, POSITIVE, UINT32, Fields, is_int, is_number, shown, within
from penstock.values.requests import Prompt, grammar, json_schema, one_of, regex
from penstock.values.sampling import Sampling
from penstock.values.tools import read_tool_choice, read_tools
from penstock.values.unsupported import CHAT, COMPLETION, MESSAGE, STRUCTURED_OUTPUTS

COMPLETIONS_MAX_TOKENS = 16
"""max_tokens of a completion that gives none, as in OpenAI's API; a chat gets the rest of the context."""

_FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
MOST_CHOICES = 16
"""Largest `n` of the API. An operator may set a smaller one."""
MOST_LOGPROBS = 20
"""Most alternatives of a token in the API. An operator may set fewer."""
LEAST_TOP_P = 1e-6
"""What `top_p: 0`, which some clients always write, means here: the most likely token alone."""
_OFF = -1
"""Value that vLLM's server also takes for no `top_k` and no `seed`."""
_MOST_DIGITS = len(str(UINT32[1]))


@dataclass(frozen=True, slots=True)
class Body:
    """One request."""

    model: str
    prompt: Prompt
    sampling: Sampling
    session_id: str
    options: ChatOptions
    """Options of a conversation; the defaults for a completion."""
    ignored: tuple[str, ...]
    """Paths of unsupported fields that were left out."""
    repeated: str = ""
    """Fields of the request that the answer repeats, as the text of a JSON object; empty for none."""
    constraint: str = ""
    """Name of the field with the constraint on the output; empty for none."""


def read_body(body: Fields, *, chat: bool) -> Body:
    """Read a request.

    Raises:
        BodyError: it can't be served as written.
    """
    model = body.required("model")
    prompt = _chat_prompt(body) if chat else _completion_prompt(body)
    constraint, structured = _structured(body)
    options = _chat_options(body) if chat else ChatOptions()
    if constraint == "response_format" and _only_calls(options, structured) and body.ignores("response_format"):
        constraint, structured = "", None
    sampling, session_id = _sampling(body, structured, chat=chat), body.text("session_id")
    ignored = body.leftovers(CHAT if chat else COMPLETION)
    return Body(model, prompt, sampling, session_id, options, ignored, constraint=constraint)


def _only_calls(options: ChatOptions, structured: StructuredOutput | None) -> bool:
    """Return whether JSON is asked for of a text, and the answer is a call of a tool."""
    choice = options.tool_choice
    required = isinstance(choice, ToolChoice) and choice.mode is ToolMode.REQUIRED
    return required and structured is not None and structured.kind is ConstraintKind.JSON_SCHEMA


# --- prompts ----------------------------------------------------------------------------------------------------------


def _chat_prompt(body: Fields) -> Prompt:
    messages = body.take("messages")
    if not isinstance(messages, list) or not messages:
        raise body.wrong("messages", f"must be a list of at least one message, got {shown(messages)}")
    return [_message(body, body.child(f"messages[{index}]", message)) for index, message in enumerate(messages)]


def _message(body: Fields, fields: Fields) -> Message:
    message = read_message(fields)
    body.also_ignored(fields.leftovers(MESSAGE))
    return message


def _chat_options(body: Fields) -> ChatOptions:
    tools, choice = read_tools(body), read_tool_choice(body)
    if not tools and choice is not None and not choice.names and choice.mode is not ToolMode.REQUIRED:
        # A choice among no tools is empty. Some clients always write it.
        choice = None
    parallel, reasoning = body.flag("parallel_tool_calls", default=True), read_reasoning(body)
    variables = _object(body, "chat_template_kwargs", body.take("chat_template_kwargs") or {})
    return ChatOptions(
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel or not tools,
        documents=tuple(_object(body, f"documents[{i}]", each) for i, each in enumerate(body.list("documents"))),
        chat_template_kwargs={**reasoning.variables, **variables} or None,
        include_reasoning=reasoning.include,
        reasoning_effort=reasoning.effort,
        continue_final_message=_continues(body),
    )


def _object(body: Fields, name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise body.wrong(name, f"must be an object, got {shown(value)}")
    return value


def _continues(body: Fields) -> bool:
    if not body.flag("continue_final_message"):
        return False
    # vLLM's server asks for false together with it, and true is the default.
    if body.take("add_generation_prompt"):
        raise body.wrong("add_generation_prompt", "must be false or absent with continue_final_message, got true")
    return True


def _completion_prompt(body: Fields) -> Prompt:
    prompt = body.take("prompt")
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(is_int(token) for token in prompt):
        for token in prompt:
            within(body, "prompt", token, UINT32)
        return prompt
    raise body.wrong("prompt", f"must be one text or one list of token ids, got {shown(prompt)}")


# --- sampling ---------------------------------------------------------------------------------------------------------


def _sampling(body: Fields, structured: StructuredOutput | None, *, chat: bool) -> Sampling:
    values: dict[str, Any] = {name: body.number(name) for name in _FLOATS}
    values |= {"n": body.count("n", POSITIVE, MOST_CHOICES), "min_tokens": body.count("min_tokens")}
    if values["top_p"] == 0:
        values["top_p"] = LEAST_TOP_P
    best_of = body.take("best_of")
    if best_of is not None and (not is_int(best_of) or best_of not in (1, values["n"])):
        raise body.wrong("best_of", f"must be 1, n or absent, got {shown(best_of)}")
    top_k, seed = body.count("top_k", (_OFF, UINT32[1])), body.count("seed", INT64)
    return Sampling(
        **values,
        max_tokens=_max_tokens(body, chat=chat),
        top_k=0 if top_k == _OFF else top_k,
        seed=None if seed == _OFF else seed,
        stop=_stop(body),
        stop_token_ids=tuple(_ints(body, "stop_token_ids")),
        ignore_eos=body.flag("ignore_eos"),
        logprobs=_logprobs(body, chat=chat),
        prompt_logprobs=body.count("prompt_logprobs", most=MOST_LOGPROBS),
        logit_bias=_logit_bias(body),
        structured=structured,
    )


def _max_tokens(body: Fields, *, chat: bool) -> int | None:
    tokens = body.count("max_tokens", POSITIVE)
    newer = body.count("max_completion_tokens", POSITIVE) if chat else None
    if newer is not None:
        return newer
    return COMPLETIONS_MAX_TOKENS if tokens is None and not chat else tokens


def _stop(body: Fields) -> tuple[str, ...]:
    stop = body.take("stop")
    if stop is None:
        return ()
    if isinstance(stop, str):
        return (stop,)
    if isinstance(stop, list) and all(isinstance(text, str) for text in stop):
        return tuple(stop)
    raise body.wrong("stop", f"must be text or a list of texts, got {shown(stop)}")


def _ints(body: Fields, name: str) -> list[int]:
    value = body.take(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(is_int(entry) for entry in value):
        raise body.wrong(name, f"must be a list of whole numbers, got {shown(value)}")
    for entry in value:
        within(body, name, entry, UINT32)
    return value


def _logprobs(body: Fields, *, chat: bool) -> int | None:
    if not chat:
        return body.count("logprobs", most=MOST_LOGPROBS)
    top = body.count("top_logprobs", most=MOST_LOGPROBS)
    if body.flag("logprobs"):
        return top or 0
    if top:
        raise body.wrong("top_logprobs", "needs logprobs to be true")
    return None


def _logit_bias(body: Fields) -> dict[int, float]:
    value = body.take("logit_bias")
    # Some languages have one empty value for lists and objects, and write it as a list.
    if value is None or value == []:
        return {}
    if not isinstance(value, dict):
        raise body.wrong("logit_bias", f"must be an object of token ids and numbers, got {shown(value)}")
    biases: dict[int, float] = {}
    for token, bias in value.items():
        if not _is_token_id(token) or not is_number(bias):
            raise body.wrong("logit_bias", f"must map token ids to numbers, got {shown({token: bias})}")
        try:
            biases[int(token)] = float(bias)
        except OverflowError:
            raise body.wrong("logit_bias", f"must be numbers below 1.8e308, got {shown({token: bias})}") from None
    return biases


def _is_token_id(text: str) -> bool:
    # Python parses no number with thousands of digits.
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) <= UINT32[1]


def _structured(body: Fields) -> tuple[str, StructuredOutput | None]:
    """Return the constraint on the output, and the name of its field."""
    given = {
        "response_format": _response_format(body),
        "guided_json": _guided(body, "guided_json", (dict, str), json_schema),
        "guided_regex": _guided(body, "guided_regex", (str,), regex),
        "guided_grammar": _guided(body, "guided_grammar", (str,), grammar),
        "guided_choice": _choice(body, "guided_choice"),
        "structured_outputs": _structured_outputs(body),
    }
    found = [(name, constraint) for name, constraint in given.items() if constraint is not None]
    best_effort = body.flag("structured_output_best_effort")
    if not found:
        return "", None
    name, constraint = found[0]
    if len(found) > 1:
        raise body.wrong(found[1][0], f"must be absent with {name}: only one constraint on the output can be given")
    return name, replace(constraint, best_effort=True) if best_effort else constraint


def _guided(
    body: Fields, name: str, kinds: tuple[type, ...], build: Callable[[Any], StructuredOutput]
) -> StructuredOutput | None:
    value = body.take(name)
    if value is None:
        return None
    if not isinstance(value, kinds):
        expected = " or ".join("text" if kind is str else "an object" for kind in kinds)
        raise body.wrong(name, f"must be {expected}, got {shown(value)}")
    return _built(body, name, build, value)


def _built(fields: Fields, name: str, build: Callable[[Any], StructuredOutput], value: object) -> StructuredOutput:
    try:
        return build(value)
    except ValueError as error:
        raise fields.wrong(name, str(error).removeprefix("json_schema: ")) from None


def _choice(body: Fields, name: str) -> StructuredOutput | None:
    values = body.take(name)
    if values is None:
        return None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise body.wrong(name, f"must be a list of texts, got {shown(values)}")
    return one_of(*values)


def _structured_outputs(body: Fields) -> StructuredOutput | None:
    wanted = body.object("structured_outputs")
    if wanted is None:
        return None
    found = [
        constraint
        for constraint in (
            _guided(wanted, "json", (dict, str), json_schema),
            _guided(wanted, "regex", (str,), regex),
            _guided(wanted, "grammar", (str,), grammar),
            _choice(wanted, "choice"),
            json_schema({"type": "object"}) if wanted.flag("json_object") else None,
            read_structural_tag_text(wanted, "structural_tag"),
        )
        if constraint is not None
    ]
    body.also_ignored(wanted.leftovers(STRUCTURED_OUTPUTS))
    if len(found) != 1:
        raise body.wrong(
            "structured_outputs",
            f"must have one of json, regex, choice, grammar, json_object, structural_tag, got {len(found)}",
        )
    return found[0]


def _response_format(body: Fields) -> StructuredOutput | None:
    wanted = body.object("response_format")
    if wanted is None:
        return None
    constraint = None
    match wanted.text("type"):
        case "text":
            pass
        case "json_object":
            constraint = json_schema({"type": "object"})
        case "json_schema":
            described = wanted.object("json_schema")
            schema = described.take("schema") if described is not None else None
            if described is None or not isinstance(schema, dict):
                raise wanted.wrong("json_schema.schema", f"must be a JSON Schema, got {shown(schema)}")
            # The output follows the schema unless the client says that it need not. Models are shown neither of these.
            best_effort = not described.flag("strict", default=True)
            for without_effect in ("name", "description"):
                described.take(without_effect)
            wanted.also_ignored(described.leftovers())
            constraint = _built(described, "schema", partial(json_schema, best_effort=best_effort), schema)
        case "structural_tag":
            constraint = read_structural_tag(wanted)
        case other:
            known = "text, json_object, json_schema or structural_tag"
            raise wanted.wrong("type", f"must be {known}, got {shown(other)}")
    body.also_ignored(wanted.leftovers())
    return constraint
