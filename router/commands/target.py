"""The parts that all commands share which call a router: flags, client, and the report of errors."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.errors import SettingsError
from cluster.nearest import did_you_mean
from cluster.terminal.command import KEY_VARIABLE
from cluster.terminal.console import print_note, print_problem

if TYPE_CHECKING:
    from penstock.client import (
        AsyncClient,
        Client,
        DeadlineExceededError,
        NotFoundError,
        PenstockClientError,
        Tls,
    )
    from penstock.client.connection import MetadataHook

_FLAGS = {
    "allow_plaintext_key=True": "--allow-plaintext-key",
    "give tls": "give --tls",
    "with tls=Tls()": "with --tls",
    "targets:": "--target:",
}
"""What the client calls its arguments, and what the commands call them."""
DEFAULT_TARGET = "127.0.0.1:50051"
SAID_S = 1.0
"""Shortest wait, seconds, that gets a line."""
AGAIN_S = 10.0
"""Seconds after which the same reason is printed again."""


@dataclass(slots=True)
class Outcome:
    """Exit status of a command."""

    status: int = 0


@contextmanager
def report_call_errors(
    options: argparse.Namespace, deadline: str = "", placed: Callable[[str], str] = str
) -> Iterator[Outcome]:
    """Print the error of a failed call instead of a traceback, and set the exit status.

    Args:
        options: with the flags of `add_target_flags`.
        deadline: the calls' deadline in words, such as "10 s"; empty where they have several, or none.
        placed: returns where the user wrote a field of the request.
    """
    from penstock.client import (
        DeadlineExceededError,
        InvalidArgumentError,
        NotFoundError,
        PenstockClientError,
        UnauthenticatedError,
        UnavailableError,
    )
    from penstock.values.fields import NotUnicodeError

    outcome = Outcome()
    try:
        yield outcome
    except InvalidArgumentError as error:
        outcome.status = 2
        for violation in error.violations:
            print_problem(f"{placed(violation.field)}: {violation.description}")
        if not error.violations:
            print_problem(_said(error))
    except UnauthenticatedError as error:
        outcome.status = 1
        print_problem(f"{error}; this command takes the key from the variable {KEY_VARIABLE} or --api-key-file")
    except UnavailableError as error:
        outcome.status = 1
        print_problem(_unavailable(options, error))
    except DeadlineExceededError as error:
        outcome.status = 1
        print_problem(_late(error, deadline))
    except NotFoundError as error:
        outcome.status = 1
        print_problem(f"{_said(error)}{_near_model(error)}")
    except PenstockClientError as error:
        outcome.status = 1
        print_problem(_said(error))
    except NotUnicodeError as error:
        # Python turns bytes of the command line that are not UTF-8 into halves of surrogate pairs.
        outcome.status = 2
        print_problem(f"arguments must be UTF-8, got {error.text!r}")


def placed_by(places: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that names a request's fields as the command's flags have them."""
    return lambda field: places.get(field, field)


def _said(error: PenstockClientError) -> str:
    # The error of a deadline does not say what the call was waiting for.
    waited_for = str(error.waited_for or error)
    return str(error) if waited_for == str(error) else f"{error}; it was waiting for: {waited_for}"


def _unavailable(options: argparse.Namespace, error: PenstockClientError) -> str:
    if error.reason and error.reason != "UNREACHABLE":
        # A router said so.
        return f"{options.target} is not available: {_said(error)}"
    if why := why_unreachable(options, str(error)):
        return f"{options.target} is not available: {why}"
    # The error names the address.
    return _said(error)


def why_unreachable(options: argparse.Namespace, said: str) -> str:
    """Return why the router of --target, or the first of several, can't be reached; empty where that is not known.

    `said` is gRPC's own text.
    """
    # Imported late: most calls reach a router.
    from router.commands.diagnosis import Tried, diagnose

    tried = Tried(
        options.target.partition(",")[0],
        tls=bool(options.tls or options.tls_ca or options.tls_cert),
        ca=_read("--tls-ca", options.tls_ca) if options.tls_ca else None,
        server_name=options.tls_server_name or "",
        shows_certificate=bool(options.tls_cert),
    )
    return diagnose(tried, said)


def _late(error: DeadlineExceededError, deadline: str) -> str:
    if error.reason not in ("", "DEADLINE") or not deadline:
        return _said(error)
    text = f"there was no complete answer within {deadline}"
    return text if error.waited_for is None else f"{text}; it was waiting for: {error.waited_for}"


def _near_model(error: NotFoundError) -> str:
    """Return a suggestion for the name of a model that is not served."""
    _, found, known = str(error).partition("known models: ")
    return did_you_mean(error.details.metadata.get("model", ""), known.split(", ")) if found else ""


def add_target_flags(
    parser: argparse.ArgumentParser, default: str | None = DEFAULT_TARGET, text: str = "", *, key: bool = True
) -> None:
    """Add the flags for the router to call and the credentials. They are a group of their own: the last one in the help
    where this is called last.

    Args:
        parser: parser of the command.
        default: router that is called without --target; None where the command then calls none.
        text: what --target says in the help, where it differs.
        key: whether the command has a key of its own.
    """
    group = parser.add_argument_group("cluster, key and TLS")
    group.add_argument(
        "--target",
        metavar="HOST:PORT",
        default=default,
        help=text or "a router of the cluster, or several with commas between them (default %(default)s)",
    )
    if key:
        group.add_argument(
            "--api-key-file", metavar="FILE", help=f"file with the API key (default: the variable {KEY_VARIABLE})"
        )
    group.add_argument(
        "--allow-plaintext-key", action="store_true", help="send the API key without TLS to another machine"
    )
    group.add_argument("--tls", action="store_true", help="use TLS and trust the public authorities")
    group.add_argument("--tls-ca", metavar="FILE", help="use TLS and trust these authorities (PEM)")
    group.add_argument("--tls-cert", metavar="FILE", help="use TLS and show this certificate (PEM); needs --tls-key")
    group.add_argument("--tls-key", metavar="FILE", help="the certificate's private key (PEM)")
    group.add_argument("--tls-server-name", metavar="NAME", help="the router's name in its certificate")


def open_client(options: argparse.Namespace, *, quiet: bool = False) -> Client:
    """Build the client that the flags and the environment describe. A quiet one reports a failure at once, and prints
    no line about a wait: the screen is used otherwise.

    Raises:
        SettingsError: the flags contradict each other, or a file can't be read.
    """
    from penstock.client import Client, RetryPolicy

    key = os.environ.get(KEY_VARIABLE) or None
    if options.api_key_file:
        key = _read("--api-key-file", options.api_key_file).decode(errors="replace").strip()
    with _named_as_flags():
        return Client(
            options.target.split(","),
            tls=_tls(options),
            api_key=key,
            allow_plaintext_key=options.allow_plaintext_key,
            retry=RetryPolicy(max_attempts=1) if quiet else RetryPolicy(on_wait=_Waits()),
        )


def open_async_client(options: argparse.Namespace, metadata: MetadataHook) -> AsyncClient:
    """Build the client that the flags describe, for a command without a key of its own. Call it in an event loop.

    Args:
        options: with the flags of `add_target_flags`.
        metadata: function that returns what is sent with each call.

    Raises:
        SettingsError: the flags contradict each other, or a file can't be read.
    """
    from penstock.client import AsyncClient

    with _named_as_flags():
        return AsyncClient(options.target.split(","), tls=_tls(options), metadata=metadata)


def sends_keys(options: argparse.Namespace) -> bool:
    """Return whether API keys may travel to the routers: by TLS, on this machine, or because the user says so."""
    from penstock.client.credentials import is_local

    if options.allow_plaintext_key or _tls(options) is not None:
        return True
    return all(map(is_local, options.target.split(",")))


@contextmanager
def _named_as_flags() -> Iterator[None]:
    """Turn an error of the client's arguments into one that names flags."""
    from penstock.values.fields import NotUnicodeError

    try:
        yield
    except NotUnicodeError:
        raise
    except ValueError as error:
        text = str(error)
        for argument, flag in _FLAGS.items():
            text = text.replace(argument, flag)
        raise SettingsError(text) from error


class _Waits:
    """Messages about calls that wait. The same reason comes again only after AGAIN_S, because a watch waits every two
    seconds.
    """

    def __init__(self) -> None:
        self._last = ""
        self._again_at = 0.0

    def __call__(self, seconds: float, error: PenstockClientError) -> None:
        now, reason = time.monotonic(), str(error)
        if seconds < SAID_S or (reason == self._last and now < self._again_at):
            return
        self._last, self._again_at = reason, now + AGAIN_S
        print_note(f"waiting {seconds:.0f} s: {reason}")


def _tls(options: argparse.Namespace) -> Tls | None:
    from penstock.client import Tls

    if bool(options.tls_cert) != bool(options.tls_key):
        raise SettingsError("--tls-cert and --tls-key must be given together")
    if not (options.tls or options.tls_ca or options.tls_cert):
        if options.tls_server_name:
            raise SettingsError("--tls-server-name needs --tls or --tls-ca")
        return None
    return Tls(
        root_certificates=_read("--tls-ca", options.tls_ca) if options.tls_ca else None,
        certificate_chain=_read("--tls-cert", options.tls_cert) if options.tls_cert else None,
        private_key=_read("--tls-key", options.tls_key) if options.tls_key else None,
        server_name=options.tls_server_name or "",
    )


def _read(flag: str, name: str) -> bytes:
    try:
        return Path(name).expanduser().read_bytes()
    except OSError as error:
        raise SettingsError(f"{flag}: {name} cannot be read: {error.strerror}") from error
