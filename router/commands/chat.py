"""`penstock chat`: a conversation in a terminal, or of the lines of standard input."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from cluster.errors import SettingsError
from cluster.nearest import did_you_mean
from cluster.terminal.command import show_examples
from cluster.terminal.console import messages, print_problem, standard_input
from router.commands.answer import Shown
from router.commands.generate import (
    add_request_flags,
    add_sampling_flags,
    only_model,
    options_from,
    sampling_from,
)
from router.commands.target import add_target_flags, open_client, report_call_errors

if TYPE_CHECKING:
    from penstock.client import Client, Message

_HELP = """\
/reset          forget the conversation
/system TEXT    forget the conversation, and begin with this system message
/help           show this
/quit           end; so does Ctrl-D
Ctrl-C stops an answer. A line that ends in \\ continues on the next one."""
_COMMANDS = ("/reset", "/system", "/help", "/quit", "/exit")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Talk with a model. Every message is sent with the conversation so far. Without a terminal, each line of "
        "standard input is a message, and the answers go to standard output."
    )
    parser.add_argument("--model", metavar="NAME", help="name of the model (default: the only one)")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--receipt", action="store_true", help="show the receipt of each answer")
    add_request_flags(parser)
    add_sampling_flags(parser)
    add_target_flags(parser)
    show_examples(
        parser,
        "penstock chat",
        'penstock chat --model large --system "Answer in one sentence." --temperature 0.7',
        "penstock chat < questions.txt",
    )
    parser.set_defaults(run=run_chat)


def run_chat(options: argparse.Namespace) -> int:
    """Answer messages until /quit or the end of the input. The exit status is 1 if a message got no answer."""
    errors = messages()
    by_hand = sys.stdin is not None and sys.stdin.isatty()
    with report_call_errors(options, "10 s") as outcome, open_client(options) as client:
        model = options.model or only_model(client)
        if by_hand:
            errors.print(f"[dim]chat with {escape(model)}; /help lists commands, /quit ends[/]", highlight=False)
        chat = _Chat(client, model, options, errors)
        for text in _typed(errors) if by_hand else _piped():
            if not chat.take(text, by_hand=by_hand):
                break
        outcome.status = chat.status
    return outcome.status


class _Chat:
    """One conversation."""

    def __init__(self, client: Client, model: str, options: argparse.Namespace, errors: Console) -> None:
        self.status = 0
        self._client = client
        self._model = model
        self._options = options
        self._errors = errors
        self._messages: list[Message] = []
        self._session = ""
        self._reset(options.system)

    def take(self, text: str, *, by_hand: bool) -> bool:
        """Carry a command out, or send a message. Return whether the conversation goes on."""
        if not text.strip():
            return True
        if not text.startswith("/"):
            self._send(text, by_hand=by_hand)
            return True
        word, _, rest = text.strip().partition(" ")
        if word in ("/quit", "/exit"):
            return False
        if word == "/reset":
            self._reset(self._options.system)
        elif word == "/system":
            self._reset(rest.strip() or None)
        elif word == "/help":
            self._errors.print(_HELP, highlight=False, markup=False)
        else:
            self.status = 1
            print_problem(f"unknown command {word}{did_you_mean(word, _COMMANDS)}; /help lists them")
        return True

    def _reset(self, system: str | None) -> None:
        from penstock.client import Message

        self._messages = [Message("system", system)] if system else []
        # The conversation stays on the replica that has it in its cache.
        self._session = f"chat-{secrets.token_hex(8)}"

    def _send(self, text: str, *, by_hand: bool) -> None:
        from penstock.client import Message
        from penstock.values.fields import NotUnicodeError

        sent = [*self._messages, Message("user", text)]
        shown = Shown(self._errors, receipt=self._options.receipt)
        timeout = self._options.timeout
        with report_call_errors(self._options, f"{timeout:g} s (--timeout)") as told:
            try:
                settings = replace(options_from(self._options), session_id=self._session)
                stream = self._client.stream(self._model, sent, sampling_from(self._options), settings, timeout=timeout)
                with stream:
                    for event in stream:
                        shown.add(event)
            except KeyboardInterrupt:
                if not by_hand:
                    raise
                sys.stdout.write("\n")
                self._errors.print("[dim]stopped[/]", highlight=False)
            except NotUnicodeError:
                raise
            except ValueError as error:
                raise SettingsError(str(error)) from error
        if told.status:
            self.status = told.status
            if by_hand:
                self._errors.print("[dim]the message is not kept; /reset begins anew[/]", highlight=False)
        elif shown.text:
            self._messages = [*sent, Message("assistant", shown.text)]


def _typed(errors: Console) -> Iterator[str]:
    """Yield what is typed, a message at a time."""
    # Gives input() a history and the keys of an editor.
    import readline  # noqa: F401

    begun: list[str] = []
    while True:
        try:
            line = input("... " if begun else "> ")
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            begun = []
            sys.stdout.write("\n")
            errors.print("[dim]/quit or Ctrl-D ends the chat[/]", highlight=False)
            continue
        begun.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield "\n".join(begun)
            begun = []


def _piped() -> Iterator[str]:
    try:
        for line in standard_input():
            yield line.rstrip("\r\n")
    except UnicodeDecodeError:
        raise SettingsError("standard input is not text in UTF-8") from None
