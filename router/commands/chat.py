"""`penstock chat`: a conversation in a terminal, or of the lines of standard input."""

from __future__ import annotations

import argparse
import json
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
from router.commands.tools import (
    ToolList,
    add_reasoning_flag,
    add_tool_flag,
    call_text,
    placed_problem,
    read_tool_files,
)

if TYPE_CHECKING:
    from penstock.client import Client, Message, ToolCall

_HELP = """\
/reset          forget the conversation
/system TEXT    forget the conversation, and begin with this system message
/tools          list the tools of --tool
/help           show this
/quit           end; so does Ctrl-D
Ctrl-C stops an answer. A line that ends in \\ continues on the next one."""
_COMMANDS = ("/reset", "/system", "/tools", "/help", "/quit", "/exit")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Talk with a model. Every message is sent with the conversation so far. Without a terminal, each line of "
        "standard input is a message, and the answers go to standard output. Where the model calls tools, the "
        "next lines are the results of the calls."
    )
    parser.add_argument("--model", metavar="NAME", help="name of the model (default: the only one)")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--receipt", action="store_true", help="show the receipt of each answer")
    add_request_flags(parser)
    add_tool_flag(parser)
    add_reasoning_flag(parser)
    add_sampling_flags(parser)
    add_target_flags(parser)
    show_examples(
        parser,
        "penstock chat",
        'penstock chat --model large --system "Answer in one sentence." --temperature 0.7',
        "penstock chat --tool weather.json",
        "penstock chat < questions.txt",
    )
    parser.set_defaults(run=run_chat)


def run_chat(options: argparse.Namespace) -> int:
    """Answer messages until /quit or the end of the input. The exit status is 1 if a message got no answer."""
    errors = messages()
    by_hand = sys.stdin is not None and sys.stdin.isatty()
    tools = read_tool_files(options.tool)
    with report_call_errors(options, "10 s") as outcome, open_client(options) as client:
        model = options.model or only_model(client)
        if by_hand:
            errors.print(f"[dim]chat with {escape(model)}; /help lists commands, /quit ends[/]", highlight=False)
        chat = _Chat(client, model, options, errors, tools)
        if by_hand:
            _talk(chat, errors)
        else:
            _read(chat)
        outcome.status = chat.status
    return outcome.status


class _Chat:
    """One conversation."""

    def __init__(
        self, client: Client, model: str, options: argparse.Namespace, errors: Console, tools: ToolList
    ) -> None:
        self.status = 0
        self._client = client
        self._model = model
        self._options = options
        self._errors = errors
        self._tools = tools
        self._messages: list[Message] = []
        self._turn: list[Message] = []
        """A message that has no complete answer yet, with the calls of tools and their results."""
        self._calls: list[ToolCall] = []
        """Calls of the last answer whose results are to come."""
        self._session = ""
        self._reset(options.system)

    @property
    def prompt(self) -> str:
        """Text to show before a line is typed."""
        return f"result of {self._calls[0].name}> " if self._calls else "> "

    def take(self, text: str, *, by_hand: bool) -> bool:
        """Carry a command out, or send a message or the results of calls. Return whether the conversation goes on."""
        word, _, rest = text.strip().partition(" ")
        if self._calls and word not in _COMMANDS:
            # It may be empty, and may begin with a slash.
            self._take_result(text, by_hand=by_hand)
            return True
        if not word:
            return True
        if not text.startswith("/"):
            self._send(text, by_hand=by_hand)
            return True
        if word in ("/quit", "/exit"):
            return False
        if word == "/reset":
            self._reset(self._options.system)
        elif word == "/system":
            self._reset(rest.strip() or None)
        elif word == "/tools":
            self._list_tools()
        elif word == "/help":
            self._errors.print(_HELP, highlight=False, markup=False)
        else:
            self.status = 1
            print_problem(f"unknown command {word}{did_you_mean(word, _COMMANDS)}; /help lists them")
        return True

    def end(self) -> None:
        """Note the end of a pipe. It must not end before results of calls."""
        if self._calls:
            self.status = 1
            print_problem(f"the input ended before the result of {call_text(self._calls[0])}")

    def _reset(self, system: str | None) -> None:
        from penstock.client import Message

        self._messages = [Message("system", system)] if system else []
        self._turn, self._calls = [], []
        # The conversation stays on the replica that has it in its cache.
        self._session = f"chat-{secrets.token_hex(8)}"

    def _list_tools(self) -> None:
        lines = [f"{tool.name}  {tool.description}".rstrip() for tool in self._tools.tools]
        text = "\n".join(lines) or "there are no tools; start with --tool FILE"
        self._errors.print(text, highlight=False, markup=False, soft_wrap=True)

    def _take_result(self, text: str, *, by_hand: bool) -> None:
        from penstock.client import Message

        call = self._calls.pop(0)
        self._turn.append(Message("tool", text, tool_call_id=call.id))
        if not self._calls:
            self._answer(by_hand=by_hand)

    def _send(self, text: str, *, by_hand: bool) -> None:
        from penstock.client import Message

        self._turn = [Message("user", text)]
        self._answer(by_hand=by_hand)

    def _answer(self, *, by_hand: bool) -> None:
        """Get an answer to the turn so far. What it leaves in the history is complete."""
        from penstock.client import Message
        from penstock.values.fields import NotUnicodeError

        shown = Shown(self._errors, receipt=self._options.receipt)
        timeout = self._options.timeout
        stopped = False
        with report_call_errors(self._options, f"{timeout:g} s (--timeout)", self._tools.placed) as told:
            try:
                settings = replace(options_from(self._options, self._tools), session_id=self._session)
                stream = self._client.stream(
                    self._model,
                    [*self._messages, *self._turn],
                    sampling_from(self._options),
                    settings,
                    timeout=timeout,
                )
                with stream, shown:
                    for event in stream:
                        shown.add(event)
            except KeyboardInterrupt:
                if not by_hand:
                    raise
                stopped = True
                sys.stdout.write("\n")
                self._errors.print("[dim]stopped[/]", highlight=False)
            except NotUnicodeError:
                raise
            except ValueError as error:
                raise SettingsError(placed_problem(str(error), self._tools.placed)) from error
        if told.status:
            self.status = told.status
            self._turn = []
            if by_hand:
                self._errors.print("[dim]the message is not kept; /reset begins anew[/]", highlight=False)
            return
        calls = () if stopped else self._complete(shown)
        if calls or shown.text:
            self._turn.append(Message("assistant", shown.text, tool_calls=calls, reasoning=shown.reasoning))
        if calls:
            self._calls = list(calls)
            return
        if shown.text:
            self._messages += self._turn
        self._turn = []

    def _complete(self, shown: Shown) -> tuple[ToolCall, ...]:
        """Return the calls, or none where one was cut or is wrong: no conversation may have it."""
        wrong = next((call for call in shown.calls if not _is_object(call.arguments)), None)
        if shown.calls and shown.was_cut:
            problem = "the answer reached the largest number of tokens; raise it with --max-tokens"
        elif wrong is not None:
            problem = f"the arguments of {call_text(wrong)} are no JSON object"
        else:
            return shown.calls
        self.status = 1
        print_problem(f"the calls are not kept: {problem}")
        return ()


def _is_object(text: str) -> bool:
    try:
        return not text or isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _talk(chat: _Chat, errors: Console) -> None:
    """Take what a person types. Ctrl-C ends a line or an answer, and never the chat, whenever it comes."""
    # Gives input() a history and the keys of an editor.
    import readline  # noqa: F401

    interrupted = False
    while True:
        try:
            if interrupted:
                interrupted = False
                sys.stdout.write("\n")
                errors.print("[dim]/quit or Ctrl-D ends the chat[/]", highlight=False)
            text = _typed(chat)
            if text is None or not chat.take(text, by_hand=True):
                return
        except KeyboardInterrupt:
            interrupted = True


def _typed(chat: _Chat) -> str | None:
    """Return the next message that is typed; None at the end."""
    begun: list[str] = []
    while True:
        try:
            line = input("... " if begun else chat.prompt)
        except EOFError:
            sys.stdout.write("\n")
            return None
        begun.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            return "\n".join(begun)


def _read(chat: _Chat) -> None:
    """Take the lines of a pipe."""
    for text in _piped():
        if not chat.take(text, by_hand=False):
            return
    chat.end()


def _piped() -> Iterator[str]:
    try:
        for line in standard_input():
            yield line.rstrip("\r\n")
    except UnicodeDecodeError:
        raise SettingsError("standard input is not text in UTF-8") from None
