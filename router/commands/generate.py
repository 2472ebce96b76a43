"""`penstock generate`."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.errors import SettingsError, plain_reason
from cluster.terminal.command import show_examples
from cluster.terminal.console import messages, standard_input
from cluster.terminal.json_values import print_json
from cluster.terminal.values import time_of
from router.commands.answer import Shown
from router.commands.target import add_target_flags, open_client, report_call_errors
from router.commands.tools import (
    ToolList,
    add_reasoning_flag,
    add_tool_flag,
    choice_from,
    placed_problem,
    read_tool_files,
)

if TYPE_CHECKING:
    from penstock.client import Client, Event, GenerateOptions, Message, Sampling

_PLAIN_FLAGS = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "logprobs", "n",
)  # fmt: skip

_IMAGE = re.compile(r"prompt\.chat\.messages\[\d+\]\.parts\[(\d+)\]\.image\b.*")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Send a prompt and stream the answer. The answer goes to standard output, all else to standard error."
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt; - reads it from standard input")
    parser.add_argument("--model", metavar="NAME", help="name of the model (default: the only one)")
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user's chat message")
    parser.add_argument("--system", metavar="TEXT", help="system message; implies --chat")
    parser.add_argument(
        "--image", action="append", default=[], metavar="FILE",
        help="image to look at: PNG, JPEG, WebP or GIF; comes before the prompt, may be given several times, and "
        "implies --chat",
    )  # fmt: skip
    add_request_flags(parser)
    add_tool_flag(parser, "; implies --chat")
    parser.add_argument(
        "--tool-choice", metavar="CHOICE",
        help="auto (the model decides), none, required, or the name of the tool to call; needs --tool",
    )  # fmt: skip
    add_reasoning_flag(parser)
    parser.add_argument("--n", type=int, metavar="N", help="number of answers to the same prompt")
    parser.add_argument(
        "--logprobs", type=int, metavar="N", help="alternatives per token, 0 to 20; they are shown with --json"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per event")
    constraint = parser.add_argument_group("form of the answer", "one of these").add_mutually_exclusive_group()
    constraint.add_argument(
        "--json-schema", metavar="JSON", help="the answer must fit this JSON Schema, or that of @FILE"
    )
    parser.add_argument(
        "--best-effort", action="store_true",
        help="with --json-schema: leave out keywords that the engine can't enforce, and name them, instead of an error",
    )  # fmt: skip
    constraint.add_argument("--regex", metavar="PATTERN", help="the answer must match this regular expression")
    constraint.add_argument(
        "--choice", action="append", default=[], metavar="TEXT",
        help="the answer must be this text; give it again for more texts to choose from",
    )  # fmt: skip
    add_sampling_flags(parser)
    add_target_flags(parser)
    show_examples(
        parser,
        'penstock generate "What is the KV cache?"',
        'penstock generate --chat --temperature 0 --max-tokens 64 "What is tensor parallelism?"',
        'penstock generate --tool weather.json "Do I need an umbrella in Oslo?"',
        'penstock generate --image photo.jpg "What does the sign say?"',
        "penstock generate --choice yes --choice no - < question.txt",
    )
    parser.set_defaults(run=run_generate)


def add_request_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how a request is served."""
    parser.add_argument("--lora-adapter", default="", metavar="NAME", help="one of the model's LoRA adapters")
    parser.add_argument(
        "--class", dest="request_class", choices=("interactive", "standard", "batch"), default="standard",
        help="how urgent it is (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=time_of, default=120.0, metavar="SECONDS",
        help="time for the whole answer (default %(default)g)",
    )  # fmt: skip


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how tokens are drawn."""
    sampling = parser.add_argument_group("sampling", "how tokens are drawn; what is not given is the model's default")
    for flag, kind, text in SAMPLING_FLAGS:
        sampling.add_argument(f"--{flag}", type=kind, metavar="N" if kind is int else "X", help=text)
    sampling.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given several times"
    )
    sampling.add_argument("--ignore-eos", action="store_true", help="continue after the end-of-sequence token")


SAMPLING_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("max-tokens", int, "largest number of output tokens"),
    ("min-tokens", int, "smallest number of output tokens"),
    ("temperature", float, "0 always takes the most likely token; higher values vary more, up to 2"),
    ("top-p", float, "draw from the most likely tokens that have this probability together"),
    ("top-k", int, "draw from this number of most likely tokens"),
    ("min-p", float, "leave out tokens less likely than this part of the most likely one"),
    ("presence-penalty", float, "-2 to 2; above 0 makes tokens that occurred less likely"),
    ("frequency-penalty", float, "-2 to 2; the same, growing with each occurrence"),
    (
        "repetition-penalty",
        float,
        "above 0 to 2; above 1 makes tokens that occurred less likely, those of the prompt too",
    ),
    ("seed", int, "the same seed draws the same tokens, on an unchanged engine and batch"),
)


def run_generate(options: argparse.Namespace) -> int:
    """Stream an answer to standard output; the receipt goes to standard error. The exit status is 0 for a complete
    answer.
    """
    from penstock.values.fields import NotUnicodeError

    shown = Shown(messages(), labels=(options.n or 1) > 1, is_json=bool(options.json_schema))
    tools = read_tool_files(options.tool)
    settings, placed = options_from(options, tools), _placed(options, tools)
    with (
        report_call_errors(options, f"{options.timeout:g} s (--timeout)", placed) as outcome,
        open_client(options) as client,
        shown,
    ):
        model = options.model or only_model(client)
        try:
            stream = client.stream(
                model, prompt_from(options), sampling_from(options), settings, timeout=options.timeout
            )
        except NotUnicodeError:
            raise  # The command line is not UTF-8; `report_call_errors` says so.
        except ValueError as error:
            raise SettingsError(placed_problem(str(error), placed)) from error
        for event in stream:
            if options.json:
                print_json(event_fields(event), indent=None)
                sys.stdout.flush()
            else:
                shown.add(event)
            if not _whole(event):
                outcome.status = 1
    return outcome.status


def _placed(options: argparse.Namespace, tools: ToolList) -> Callable[[str], str]:
    """Return a function that tells where the user wrote a field of the request."""

    def placed(field: str) -> str:
        found = _IMAGE.fullmatch(field)
        return f"--image {options.image[int(found[1])]}" if found else tools.placed(field)

    return placed


def _whole(event: Event) -> bool:
    """Return whether the answer is complete as far as this event shows. One that was stopped from outside is not."""
    from penstock.client import Finished, FinishReason

    complete = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS)
    return not isinstance(event, Finished) or all(end.finish_reason in complete for end in event.choices)


def only_model(client: Client) -> str:
    """Return the name of the only model.

    Raises:
        SettingsError: there is none, or there are several.
    """
    models = client.list_models(timeout=10.0)
    if not models:
        raise SettingsError("none of the models here may be used with this key")
    if len(models) != 1:
        raise SettingsError(f"choose a model with --model: {', '.join(model.name for model in models)}")
    return models[0].name


def prompt_from(options: argparse.Namespace) -> str | list[Message]:
    """Return the prompt: a text, or chat messages with --chat, --system, --image or --tool.

    Raises:
        SettingsError: the prompt is standard input, which is not UTF-8, or an image can't be read.
    """
    from penstock.client import Image, Message

    try:
        text = standard_input().read() if options.prompt == "-" else options.prompt
    except UnicodeDecodeError:
        raise SettingsError("prompt: standard input is not text in UTF-8") from None
    if not _is_chat(options):
        return str(text)
    system = [Message("system", options.system)] if options.system else []
    images = [Image(_image(name)) for name in options.image]
    return [*system, Message("user", [*images, text] if images else text)]


def _image(name: str) -> bytes:
    try:
        return Path(name).expanduser().read_bytes()
    except OSError as error:
        raise SettingsError(f"--image: {name} cannot be read: {plain_reason(error)}") from error


def _is_chat(options: argparse.Namespace) -> bool:
    # `penstock chat` has no --chat.
    return bool(getattr(options, "chat", True) or options.system or options.image or options.tool)


def options_from(options: argparse.Namespace, tools: ToolList) -> GenerateOptions:
    """Return the options besides prompt and sampling.

    Raises:
        SettingsError: --tool-choice does not fit the tools.
    """
    from penstock.client import GenerateOptions, RequestClass

    return GenerateOptions(
        RequestClass[options.request_class.upper()],
        lora_adapter=options.lora_adapter,
        tools=tools.tools,
        tool_choice=choice_from(getattr(options, "tool_choice", None), tools),
        # Output for a plain text has no reasoning of its own to leave out.
        include_reasoning=not (options.no_reasoning and _is_chat(options)),
    )


def sampling_from(options: argparse.Namespace) -> Sampling:
    """Return the sampling parameters.

    Raises:
        SettingsError: the file of a schema can't be read.
    """
    from penstock.client import Sampling, json_schema, one_of, regex

    structured = None
    # `penstock chat` has none of these flags.
    if schema := getattr(options, "json_schema", None):
        structured = json_schema(_schema(schema), best_effort=bool(getattr(options, "best_effort", False)))
    elif pattern := getattr(options, "regex", None):
        structured = regex(pattern)
    elif choices := getattr(options, "choice", None):
        structured = one_of(*choices)
    plain: dict[str, Any] = {name: getattr(options, name, None) for name in _PLAIN_FLAGS}
    return Sampling(**plain, stop=options.stop, ignore_eos=options.ignore_eos, structured=structured)


def _schema(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--json-schema: {text[1:]} cannot be read: {plain_reason(error)}") from error


def event_fields(event: Event) -> dict[str, Any]:
    """Return an event as fields, with its name first."""
    return {"event": type(event).__name__.lower(), **dataclasses.asdict(event)}
