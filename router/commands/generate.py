"""`penstock generate`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cluster.errors import SettingsError, plain_reason
from cluster.terminal.console import messages, standard_input
from cluster.terminal.receipt import print_receipt
from cluster.terminal.values import time_of
from router.commands.target import add_target_flags, open_client, report_call_errors

if TYPE_CHECKING:
    from penstock.client import Client, Event, GenerateOptions, Message, Sampling

_PLAIN_FLAGS = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "logprobs", "n",
)  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_target_flags(parser)
    parser.add_argument("prompt", help="the prompt; - reads it from standard input")
    parser.add_argument("--model", help="model name (default: the only one)")
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user's chat message")
    parser.add_argument("--system", help="system message; implies --chat")
    parser.add_argument("--lora-adapter", default="", metavar="NAME", help="one of the model's adapters")
    parser.add_argument(
        "--class", dest="request_class", choices=("interactive", "standard", "batch"), default="standard",
        help="how urgent it is (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object per event")
    parser.add_argument("--timeout", type=time_of, default=120.0, help="deadline in seconds (default %(default)s)")
    for flag, kind, text in SAMPLING_FLAGS:
        parser.add_argument(f"--{flag}", type=kind, help=text)
    parser.add_argument("--stop", action="append", default=[], help="stop string; may be given several times")
    parser.add_argument("--ignore-eos", action="store_true", help="go on past the end-of-sequence token")
    constraint = parser.add_mutually_exclusive_group()
    constraint.add_argument(
        "--json-schema", metavar="JSON", help="constrain the output to this JSON Schema, or to that of @FILE"
    )
    constraint.add_argument("--regex", help="constrain the output to this regular expression")
    constraint.add_argument("--choice", action="append", default=[], help="allowed answer; may be given several times")
    parser.set_defaults(run=run_generate)


SAMPLING_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("max-tokens", int, "most output tokens"),
    ("min-tokens", int, "fewest output tokens"),
    ("temperature", float, "0 is greedy"),
    ("top-p", float, "nucleus sampling"),
    ("top-k", int, "keep the k most likely tokens"),
    ("min-p", float, "drop tokens less likely than this times the most likely"),
    ("presence-penalty", float, "-2 to 2"),
    ("frequency-penalty", float, "-2 to 2"),
    ("repetition-penalty", float, "above 0 to 2"),
    ("seed", int, "seeds the draws"),
    ("logprobs", int, "alternatives per token, 0 to 20; shown with --json"),
    ("n", int, "number of choices"),
)


def run_generate(options: argparse.Namespace) -> int:
    """Stream an answer to standard output; the receipt goes to standard error. The exit status is 0 for a complete
    answer.
    """
    from penstock.values.fields import NotUnicodeError

    errors = messages()
    with report_call_errors(options.target) as outcome, open_client(options) as client:
        model = options.model or only_model(client)
        try:
            stream = client.stream(
                model, prompt_from(options), sampling_from(options), options_from(options), timeout=options.timeout
            )
        except NotUnicodeError:
            raise  # The command line is not UTF-8; `report_call_errors` says so.
        except ValueError as error:
            raise SettingsError(str(error)) from error
        others: dict[int, str] = {}
        for event in stream:
            if options.json:
                sys.stdout.write(json.dumps(event_fields(event)) + "\n")
                sys.stdout.flush()
            else:
                show_event(event, errors, others)
            if not _whole(event):
                outcome.status = 1
    return outcome.status


def _whole(event: Event) -> bool:
    """Return whether the answer is complete as far as this event shows. One that was stopped from outside is not."""
    from penstock.client import Finished, FinishReason

    complete = (FinishReason.STOP, FinishReason.LENGTH)
    return not isinstance(event, Finished) or all(end.finish_reason in complete for end in event.choices)


def only_model(client: Client) -> str:
    """Return the name of the only model.

    Raises:
        SystemExit: there is none, or there are several.
    """
    models = client.list_models(timeout=10.0)
    if not models:
        raise SystemExit("penstock: none of the models here may be used with this key")
    if len(models) != 1:
        raise SystemExit(f"penstock: choose a model with --model: {', '.join(model.name for model in models)}")
    return models[0].name


def prompt_from(options: argparse.Namespace) -> str | list[Message]:
    """Return the prompt: a text, or chat messages with --chat or --system.

    Raises:
        SettingsError: the prompt is standard input, which is not UTF-8.
    """
    from penstock.client import Message

    try:
        text = standard_input().read() if options.prompt == "-" else options.prompt
    except UnicodeDecodeError:
        raise SettingsError("prompt: standard input is not text in UTF-8") from None
    if not options.chat and not options.system:
        return str(text)
    system = [Message("system", options.system)] if options.system else []
    return [*system, Message("user", text)]


def options_from(options: argparse.Namespace) -> GenerateOptions:
    """Return the options besides prompt and sampling."""
    from penstock.client import GenerateOptions, RequestClass

    return GenerateOptions(RequestClass[options.request_class.upper()], lora_adapter=options.lora_adapter)


def sampling_from(options: argparse.Namespace) -> Sampling:
    from penstock.client import Sampling, json_schema, one_of, regex

    structured = None
    if options.json_schema:
        structured = json_schema(_schema(options.json_schema))
    elif options.regex:
        structured = regex(options.regex)
    elif options.choice:
        structured = one_of(*options.choice)
    plain = {name: getattr(options, name) for name in _PLAIN_FLAGS}
    return Sampling(**plain, stop=options.stop, ignore_eos=options.ignore_eos, structured=structured)


def _schema(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--json-schema: {text[1:]} cannot be read: {plain_reason(error)}") from error


def show_event(event: Event, errors: Console, others: dict[int, str]) -> None:
    """Print an event for a person. The text of choice 0 is printed as it comes; `others` collects that of other
    choices, which is printed at the end.
    """
    from penstock.client import Delta, Finished, Queued, Resumed

    if isinstance(event, Delta):
        if event.choice_index:
            others[event.choice_index] = others.get(event.choice_index, "") + event.text
        else:
            sys.stdout.write(event.text)
            sys.stdout.flush()
    elif isinstance(event, Queued):
        errors.print(f"[dim]waiting, {event.position} ahead[/]", highlight=False)
    elif isinstance(event, Resumed):
        errors.print("[dim]resumed[/]", highlight=False)
    elif isinstance(event, Finished):
        sys.stdout.write("".join(["\n", *(f"[{index}] {others[index]}\n" for index in sorted(others))]))
        sys.stdout.flush()
        print_receipt(event, errors)


def event_fields(event: Event) -> dict[str, Any]:
    """Return an event as fields for JSON; bytes become hexadecimal."""
    return {"event": type(event).__name__.lower(), **_plain(dataclasses.asdict(event))}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value
