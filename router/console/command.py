"""`penstock console`: the page that shows what a cluster does."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from cluster.ready_file import READY_FLAG, check_ready_file, write_ready_file
from cluster.terminal.command import show_examples
from cluster.terminal.console import screen
from cluster.terminal.values import whole
from router.commands.target import add_target_flags, open_async_client, sends_keys

DEFAULT_PORT = 8080
_CERT, _KEY = "--https-cert", "--https-key"


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve a web page that shows what a cluster does: its replicas, the line, the autoscaler's decisions, "
        "requests, jobs and costs, with a playground. It calls the routers as any client does. Where they need API "
        "keys, the page asks for one, which stays in the browser."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--port",
        type=whole(0, 65535),
        default=DEFAULT_PORT,
        metavar="N",
        help="port of the page (default %(default)s); 0 takes a free one",
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="NAME",
        help="name under which browsers call the page, beside addresses and localhost; may be given again",
    )
    parser.add_argument(
        _CERT, type=Path, metavar="FILE", help=f"serve the page over TLS with this certificate (PEM); needs {_KEY}"
    )
    parser.add_argument(_KEY, type=Path, metavar="FILE", help="the page's private key (PEM)")
    parser.add_argument("--any-port", action="store_true", help="take a free port where that one is in use")
    parser.add_argument(READY_FLAG, type=Path, metavar="FILE", help="file to write as JSON once it serves")
    add_target_flags(parser, key=False)
    show_examples(
        parser,
        "penstock console",
        "penstock console --target router.example.com:50051 --tls --port 8081",
        "penstock console --host 0.0.0.0 --name console.example.com --https-cert tls.crt --https-key tls.key",
    )
    parser.set_defaults(run=run_console)


def run_console(options: argparse.Namespace) -> int:
    """Serve the page until SIGTERM or Ctrl-C."""
    check_ready_file(options.ready_file)
    asyncio.run(_run(options))
    return 0


async def _run(options: argparse.Namespace) -> None:
    from cluster.addresses import host_port
    from cluster.errors import SettingsError
    from cluster.lifecycle import stop_signals
    from cluster.trust.tls import TlsFiles
    from penstock.client.credentials import is_local
    from router.console.caller import key_metadata
    from router.console.planning import planner_installed
    from router.console.server import ConsoleFacts, ConsoleServer

    cert, key = options.https_cert, options.https_key
    if (cert is None) != (key is None):
        raise SettingsError(f"{_CERT} and {_KEY} must be given together")
    tls = TlsFiles("console", cert, key, None, names=(_CERT, _KEY)) if cert is not None else None
    stop = asyncio.Event()
    async with open_async_client(options, key_metadata) as client:
        server = ConsoleServer(
            client,
            ConsoleFacts(options.target, planner_installed()),
            keys_allowed=sends_keys(options),
            # On this machine who may open the page may use the certificate, too. A name means a proxy before the page,
            # which other machines call.
            keys_required=bool(options.tls_cert) and (bool(options.name) or not is_local(host_port(options.host, 0))),
            names=options.name,
            tls=tls.server_context() if tls is not None else None,
        )
        with stop_signals(stop.set):
            await server.start(options.host, options.port, any_port=options.any_port)
            try:
                scheme = "http" if tls is None else "https"
                address = host_port(options.host, server.port)
                # Addresses of IPv6 have brackets, as rich's markup has.
                text = f"console of {options.target}: {scheme}://{address}"
                screen().print(text, highlight=False, markup=False, soft_wrap=True)
                write_ready_file(options.ready_file, {"port": server.port, "pid": os.getpid()})
                await stop.wait()
            finally:
                await server.stop()
