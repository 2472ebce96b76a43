"""Errors that gRPC itself makes, with what a person can do. gRPC names neither the remedy nor, often, the address."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import grpc

from penstock.values.errors import DeadlineExceededError, PenstockClientError, UnavailableError

DEADLINE = "DEADLINE"
"""Reason of a call whose timeout passed, as routers say it too."""
UNREACHABLE = "UNREACHABLE"
"""Reason of a call that no router answered."""

TOO_LARGE = "MESSAGE_TOO_LARGE"
"""Reason of a call whose request or answer is longer than its receiver takes."""

_LENGTHS = re.compile(r"(CLIENT: )?Received message larger than max \((\d+) vs\. (\d+)\)")
_LAST_ERROR = re.compile(r"last error: (?:UNKNOWN|UNAVAILABLE): ")
_TLS_MEETS_PLAINTEXT = ("WRONG_VERSION_NUMBER", "wrong version number", "SSL_ERROR_SSL: error:100000f7")
_BAD_CERTIFICATE = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification Check failed", "Peer name", "not in peer cert")
_UNUSABLE = ("Failed to create security handshaker",)
_NO_NAME = ("DNS resolution failed", "Domain name not found", "Name or service not known")
_NOBODY_LISTENS = ("Connection refused", "No such file or directory")
_CLOSED = ("Socket closed", "recvmsg:Connection reset by peer", "Connection reset", "Broken pipe", "GOAWAY")
_TOO_LATE = ("timed out", "Timeout occurred", "Deadline Exceeded")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a call: where it went and how."""

    target: str
    tls: bool
    timeout: float | None
    """Seconds that the whole call had; None without a limit."""

    def explained(self, error: PenstockClientError, *, begun: bool = False) -> PenstockClientError:
        """Return the error with its remedy; unchanged if a router made it. `begun`: whether the router had answered."""
        if isinstance(error, DeadlineExceededError) and self.timeout is not None and error.reason in ("", DEADLINE):
            done = "the output was complete" if error.reason else f"{self.target} answered"
            return _said(error, f"timeout: {self.timeout:g} s passed before {done}", DEADLINE)
        if isinstance(error, UnavailableError) and error.code is grpc.StatusCode.UNAVAILABLE and not error.reason:
            text = str(error)
            remedy = "the connection was lost." if begun and _has(text, _CLOSED) else self._remedy(text)
            return _said(error, f"{self.target}: {remedy} gRPC says: {_short(text)}", UNREACHABLE)
        if (lengths := _LENGTHS.search(str(error))) and not error.reason:
            here, found, most = lengths.groups()
            message = f"the request has {found} bytes, and {self.target} takes {most} (router.max_message_bytes)"
            answer = f"the answer of {self.target} has {found} bytes, and this client takes {most}"
            return _said(error, answer if here else message, TOO_LARGE)
        return error

    def _remedy(self, text: str) -> str:
        if _has(text, _TLS_MEETS_PLAINTEXT):
            return "it does not speak TLS; leave `tls` out, or set router.tls at the cluster."
        if _has(text, _BAD_CERTIFICATE):
            return (
                "its certificate is not signed by an authority of tls.root_certificates, or is for another name; "
                "tls.server_name gives the name in it."
            )
        if _has(text, _UNUSABLE):
            return "gRPC can't use `tls`: a certificate or key of it is not PEM, or the two are no pair."
        if _has(text, _NO_NAME):
            return "there is no host of this name; a target is host:port."
        if _has(text, _NOBODY_LISTENS):
            return "no router listens there. Is the cluster up (`penstock up`), and is this its address?"
        if _has(text, _CLOSED):
            if self.tls:
                return (
                    "the connection was closed; does it speak TLS at all, and does it ask for a client's certificate "
                    "(tls.certificate_chain)?"
                )
            return "the connection was closed; if it expects TLS, give `tls=Tls(...)`."
        if _has(text, _TOO_LATE):
            return "it does not answer; is there a firewall, or is this another machine's address?"
        return "no router answers there."


def _said(error: PenstockClientError, message: str, reason: str) -> PenstockClientError:
    told = type(error)(message, error.code, replace(error.details, reason=reason))
    told.waited_for = error.waited_for
    return told


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def _short(text: str) -> str:
    """Return the cause alone, where gRPC has one behind a general sentence."""
    return _LAST_ERROR.split(text)[-1]
