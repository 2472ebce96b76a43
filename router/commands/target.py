"""The parts that all commands share which call a router: flags, client, and the report of errors."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.errors import SettingsError
from cluster.terminal.command import KEY_VARIABLE
from cluster.terminal.console import print_problem, print_wait

if TYPE_CHECKING:
    from penstock.client import Client, PenstockClientError, Tls

_FLAGS = {
    "allow_plaintext_key=True": "--allow-plaintext-key",
    "give tls": "give --tls",
    "with tls=Tls()": "with --tls",
    "targets:": "--target:",
}
"""What the client calls its arguments, and what the commands call them."""
SAID_S = 1.0
"""Shortest wait, seconds, that gets a line."""
AGAIN_S = 10.0
"""Seconds after which the same reason is printed again."""


@dataclass(slots=True)
class Outcome:
    """Exit status of a command."""

    status: int = 0


@contextmanager
def report_call_errors(target: str) -> Iterator[Outcome]:
    """Print the error of a failed call instead of a traceback, and set the exit status."""
    from penstock.client import InvalidArgumentError, PenstockClientError, UnauthenticatedError, UnavailableError
    from penstock.values.fields import NotUnicodeError

    outcome = Outcome()
    try:
        yield outcome
    except InvalidArgumentError as error:
        outcome.status = 2
        for violation in error.violations:
            print_problem(f"{violation.field}: {violation.description}")
        if not error.violations:
            print_problem(_said(error))
    except UnauthenticatedError as error:
        outcome.status = 1
        print_problem(f"{error}; this command takes the key from the variable {KEY_VARIABLE} or --api-key-file")
    except UnavailableError as error:
        outcome.status = 1
        # An error of a router that nobody reaches names its address itself.
        place = "" if error.reason == "UNREACHABLE" else f"{target} is not available: "
        print_problem(f"{place}{_said(error)}")
    except PenstockClientError as error:
        outcome.status = 1
        print_problem(_said(error))
    except NotUnicodeError as error:
        # Python turns bytes of the command line that are not UTF-8 into halves of surrogate pairs.
        outcome.status = 2
        print_problem(f"arguments must be UTF-8, got {error.text!r}")


def _said(error: PenstockClientError) -> str:
    # The error of a deadline does not say what the call was waiting for.
    waited_for = str(error.waited_for or error)
    return str(error) if waited_for == str(error) else f"{error}; it was waiting for: {waited_for}"


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the router to call and the credentials."""
    parser.add_argument("--target", default="127.0.0.1:50051", help="host:port of a router (default %(default)s)")
    parser.add_argument("--api-key-file", help="file with the API key (default: the variable PENSTOCK_API_KEY)")
    parser.add_argument(
        "--allow-plaintext-key", action="store_true", help="send the key without TLS to another machine"
    )
    parser.add_argument("--tls", action="store_true", help="use TLS and trust the public authorities")
    parser.add_argument("--tls-ca", metavar="FILE", help="use TLS and trust these authorities (PEM)")
    parser.add_argument("--tls-cert", metavar="FILE", help="use TLS and show this certificate (PEM); needs --tls-key")
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's private key (PEM)")
    parser.add_argument("--tls-server-name", metavar="NAME", help="the router's name in its certificate")


def open_client(options: argparse.Namespace) -> Client:
    """Build the client that the flags and the environment describe.

    Raises:
        SettingsError: the flags contradict each other, or a file can't be read.
    """
    from penstock.client import Client, RetryPolicy
    from penstock.values.fields import NotUnicodeError

    key = os.environ.get(KEY_VARIABLE) or None
    if options.api_key_file:
        key = _read("--api-key-file", options.api_key_file).decode(errors="replace").strip()
    try:
        return Client(
            options.target,
            tls=_tls(options),
            api_key=key,
            allow_plaintext_key=options.allow_plaintext_key,
            retry=RetryPolicy(on_wait=_Waits()),
        )
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
        print_wait(f"waiting {seconds:.0f} s: {reason}")


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
