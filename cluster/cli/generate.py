"""`penstock generate`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cluster.cli.console import messages, standard_input
from cluster.cli.receipt import print_receipt
from cluster.cli.target import open_client, report_call_errors
from cluster.errors import SettingsError, plain_reason

if TYPE_CHECKING:
    from penstock.client import Client, Event, GenerateOptions, Message, Sampling

_PLAIN_FLAGS = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "logprobs", "n",
)  # fmt: skip


def run_generate(options: argparse.Namespace) -> int:
    """Stream an answer to standard output; the receipt goes to standard error. The status is 0 for a whole one."""
    errors = messages()
    with report_call_errors(options.target) as outcome, open_client(options) as client:
        model = options.model or only_model(client)
        try:
            stream = client.stream(
                model, prompt_from(options), sampling_from(options), options_from(options), timeout=options.timeout
            )
        except UnicodeEncodeError:
            raise  # The command line's, said as everywhere.
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
    """Say whether an event leaves the answer whole: one that was stopped from outside must not look complete."""
    from penstock.client import Finished, FinishReason

    complete = (FinishReason.STOP, FinishReason.LENGTH)
    return not isinstance(event, Finished) or all(end.finish_reason in complete for end in event.choices)


def only_model(client: Client) -> str:
    """Return the name of the only model.

    Raises:
        SystemExit: there are several.
    """
    models = client.list_models(timeout=10.0)
    if not models:
        raise SystemExit("penstock: none of the models here may be used with this key")
    if len(models) != 1:
        raise SystemExit(f"penstock: choose a model with --model: {', '.join(model.name for model in models)}")
    return models[0].name


def prompt_from(options: argparse.Namespace) -> str | list[Message]:
    """Return the prompt, as chat messages when asked for.

    Raises:
        SettingsError: standard input, where it is the prompt, is no text.
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
    """Return what is neither prompt nor sampling."""
    from penstock.client import GenerateOptions, RequestClass

    return GenerateOptions(RequestClass[options.request_class.upper()], lora_adapter=options.lora_adapter)


def sampling_from(options: argparse.Namespace) -> Sampling:
    """Build the sampling parameters from the flags."""
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
    """Write an event for a person. Choice 0 is shown as it comes; `others` collects the rest, which follow it."""
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
    """Return an event as JSON fields; bytes become hex."""
    return {"event": type(event).__name__.lower(), **_plain(dataclasses.asdict(event))}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value
